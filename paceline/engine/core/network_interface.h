#pragma once

// Under which of its addresses this host takes part in a job that spans hosts.
//
// Thread safety: free functions.

#include <string>
#include <string_view>
#include <vector>

namespace paceline {

struct InterfaceAddress {
  std::string interface;  // "eth0"
  std::string address;    // numeric
  bool is_v6 = false;
  bool is_loopback = false;
};

// Of the interfaces that are up, in the kernel's order; without those that are valid on one link
// only. Error(kSystem).
std::vector<InterfaceAddress> interface_addresses();

// The address to use. `wanted` is as NCCL_SOCKET_IFNAME has it: "eth,ib" are beginnings of names,
// the first that fits an interface counts; "=eth0,eth1" are whole names; "^docker,virbr" are
// beginnings of what is not to be taken. Empty: the first interface that is not loopback, 127.0.0.1
// when there is none. Of an interface's addresses one of the preferred family is taken, if it has
// one. Error(kInvalid) names the interfaces that there are.
std::string choose_address(std::string_view wanted, const std::vector<InterfaceAddress>& there,
                           bool prefer_v6);

// Whether `address` is valid on one link only (fe80::...), so that it means nothing to other hosts.
bool is_link_local(const std::string& address);

}  // namespace paceline
