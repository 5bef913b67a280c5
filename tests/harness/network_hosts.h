#pragma once

// Several hosts on one machine: network namespaces, each with one interface (eth0) on a common
// bridge. A link's rate is limited in both directions (tbf), as a switch's port limits it, and on
// request also that of every IPv4 connection by itself (htb), as some providers limit it.
//
// The namespaces have no names: descriptors of this process hold them, and the kernel removes them,
// with everything in them, when the last process that uses them ends, however that ends.
//
// Requires: Linux, root, `ip` and `tc` (Debian's iproute2); why_not() says what is missing.
// Thread safety: none; enter() moves the calling thread.

#include <string>
#include <vector>

#include "paceline/engine/core/system/fd.h"

namespace paceline::harness {

class NetworkHosts {
 public:
  // Empty where hosts can be made, otherwise the reason.
  static std::string why_not();

  // Links of `gbit_per_s` to the bridge; 0: as fast as the machine is. Error(kSystem).
  // `flow_gbit_per_s`: of what one connection sends, within the former, which must then be given.
  // Connections are told apart by six bits of their client's port, so now and then two share it.
  // Requires: ranks dial those on hosts of lower numbers, as a mesh's do.
  explicit NetworkHosts(int count, double gbit_per_s = 0, double flow_gbit_per_s = 0);
  NetworkHosts(const NetworkHosts&) = delete;
  NetworkHosts& operator=(const NetworkHosts&) = delete;

  int count() const { return static_cast<int>(hosts_.size()); }
  std::string address(int host) const;
  std::string address_v6(int host) const;
  // The addresses of all hosts, as "a.b.c.d/n".
  static std::string subnet();
  // Where nsenter(1) finds the host's namespace, as long as this process lives.
  std::string path(int host) const;

  // Moves the calling thread, and what it starts from now on, into the host; out of it again.
  void enter(int host) const;
  void leave() const;

  // `ip link set eth0 up|down` on the host.
  void set_link(int host, bool up) const;
  // From now on everything that the host sends or receives vanishes, without a sign to anybody.
  void cut(int host) const;
  void mend(int host) const;

 private:
  void make_link(int host, double gbit_per_s) const;
  void limit_flows(int host, double gbit_per_s, double flow_gbit_per_s) const;
  void run(const Fd& space, const std::vector<std::string>& command) const;

  const Fd home_;
  const Fd bridge_;  // the namespace in which it is
  std::vector<Fd> hosts_;
};

}  // namespace paceline::harness
