#pragma once

// The leaf on UCX: the data and point-to-point channels to ranks of other hosts go over whatever
// UCX finds best there (InfiniBand, RoCE, TCP, ...; UCX_TLS and UCX_NET_DEVICES choose), as UCX's
// streams. The control channels stay on TCP: they are the lifelines. UCX's library is loaded when
// it is first asked for, so a program that does not use it does not have it.
//
// Authentication: workers learn each other's addresses over the authenticated TCP connections, and
// only endpoints made from those are read. UCX itself neither proves nor encrypts what it carries.
// Cost: a received byte is copied once, out of UCX's buffer.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/transport/socket_wire.h"

namespace paceline {

struct UcxInfo {
  bool available = false;
  std::string text;                       // its version, or why it is not available
  std::string advice;                     // how to get it; empty when it is there
  std::vector<std::string> rdma_devices;  // what UCX can reach without the kernel, "mlx5_0:1"
};
UcxInfo ucx_info();

// What messages call a rank: "rank 2 (box)".
using DescribeRank = std::function<std::string(int rank)>;

// Takes a wire on which every peer is connected, if it succeeds, and moves the channels to `remote`
// ranks to UCX. Collective among them. Error(kUnsupported) when UCX is not available, kTimeout,
// kPeerLost, and kSystem with what UCX says.
std::unique_ptr<Wire> over_ucx(std::unique_ptr<SocketWire>& sockets, const std::vector<int>& remote,
                               const DescribeRank& describe, Deadline deadline);

}  // namespace paceline
