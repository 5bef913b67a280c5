#pragma once

// Hosts for tests on one machine: network namespaces that a bridge connects, and a command that
// stands in for ssh and enters them. Needs root. The test's own processes make everything in
// namespaces of their own, so nothing is left behind, whichever of them dies.
//
//   10.77.0.254 (this process) ── bridge ─┬─ 10.77.0.1 (host 0)
//                                         └─ 10.77.0.2 (host 1) ...

#include <string>
#include <vector>

#include <sys/types.h>

#include "tests/harness/fresh_directory.h"

namespace paceline::launcher {

class NetworkHosts {
 public:
  // Why namespaces cannot be made here; empty if they can be made.
  static std::string unavailable();

  explicit NetworkHosts(int count);
  NetworkHosts(const NetworkHosts&) = delete;
  NetworkHosts& operator=(const NetworkHosts&) = delete;
  ~NetworkHosts();

  // A list for --hosts: "10.77.0.1:2,10.77.0.2:2".
  std::string list(int slots) const;
  static std::string name(int host) { return "10.77.0." + std::to_string(host + 1); }
  // The command for --ssh-command. Like a fresh login it passes no variables on.
  std::string ssh() const { return directory_.file("ssh"); }
  // A command that first runs `script` (of a POSIX shell; $1 is the host, $2 the command) and then
  // ssh().
  std::string ssh_after(const std::string& script) const;
  // Unplugs the host: nothing that it sends arrives any more, and nothing reaches it.
  void unplug(int host) const;
  const FreshDirectory& directory() const { return directory_; }
  // The TMPDIR of all hosts.
  std::string temporary() const { return directory_.file("tmp"); }

 private:
  FreshDirectory directory_;
  std::vector<pid_t> keepers_;  // each one keeps a namespace alive
};

}  // namespace paceline::launcher
