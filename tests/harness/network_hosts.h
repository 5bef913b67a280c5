#pragma once

// Several hosts on one machine: network namespaces, each with one interface (eth0) on a common
// bridge. The rate of a link is limited in both directions (tbf), like that of a switch's port. On
// request the rate of each IPv4 connection is also limited (htb), as some cloud providers limit it.
//
// The namespaces have no names: descriptors of this process hold them, and the kernel removes them,
// with everything in them, when the last process that uses them ends, however it ends.
//
// Requires: Linux, root, `ip` and `tc` (Debian's iproute2); why_not() says what is missing.
// Thread safety: none; enter() moves the calling thread.

#include <string>
#include <vector>

#include "paceline/engine/core/system/fd.h"

namespace paceline::harness {

class NetworkHosts {
 public:
  // Empty if hosts can be made, otherwise the reason why not.
  static std::string why_not();

  // Links of `gbit_per_s` to the bridge; 0: as fast as the machine allows. `flow_gbit_per_s` limits
  // what one connection may send; it requires a `gbit_per_s` at least as large. Six bits of the
  // client's port identify a connection, so sometimes two connections share a limit. Requires: a
  // rank connects to ranks on hosts with lower numbers, as in a mesh. Throws Error(kSystem).
  explicit NetworkHosts(int count, double gbit_per_s = 0, double flow_gbit_per_s = 0);
  NetworkHosts(const NetworkHosts&) = delete;
  NetworkHosts& operator=(const NetworkHosts&) = delete;

  int count() const { return static_cast<int>(hosts_.size()); }
  std::string address(int host) const;
  std::string address_v6(int host) const;
  // The addresses of all hosts, as "a.b.c.d/n".
  static std::string subnet();
  // A path at which nsenter(1) finds the host's namespace, as long as this process lives.
  std::string path(int host) const;

  // enter() moves the calling thread, with everything that it starts from then on, into the host.
  // leave() moves it back.
  void enter(int host) const;
  void leave() const;

  // `ip link set eth0 up|down` on the host.
  void set_link(int host, bool up) const;
  // From now on everything that the host sends or receives is silently dropped, until mend().
  void cut(int host) const;
  void mend(int host) const;

 private:
  void make_link(int host, double gbit_per_s) const;
  void limit_flows(int host, double gbit_per_s, double flow_gbit_per_s) const;
  void run(const Fd& space, const std::vector<std::string>& command) const;

  const Fd home_;
  const Fd bridge_;  // the namespace of the bridge
  std::vector<Fd> hosts_;
};

}  // namespace paceline::harness
