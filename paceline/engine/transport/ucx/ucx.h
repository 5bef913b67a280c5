#pragma once

// The wire over UCX. The data and point-to-point channels to ranks of other hosts become UCX
// streams over the transport that UCX finds best (InfiniBand, RoCE, TCP, ...; UCX_TLS and
// UCX_NET_DEVICES choose). The control channels stay on TCP, because they are the lifelines. The
// UCX library is loaded when it is first needed, so a program that does not use it never loads it.
//
// Authentication: workers learn each other's addresses over the authenticated TCP connections, and
// only endpoints with these addresses are read. UCX itself neither authenticates nor encrypts bytes
// that it carries. Cost: a received byte is copied once, out of UCX's buffer.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/transport/socket_wire.h"

namespace paceline {

struct UcxInfo {
  bool available = false;
  std::string text;                       // UCX's version, or why UCX is not available
  std::string advice;                     // how to install UCX; empty if it is available
  std::vector<std::string> rdma_devices;  // devices that UCX uses without the kernel ("mlx5_0:1")
};
UcxInfo ucx_info();

// Returns a rank's name in messages: "rank 2 (box)".
using DescribeRank = std::function<std::string(int rank)>;

// Uses UCX for the channels to the `remote` ranks, which call this as well. Requires: every peer
// is connected on `sockets`, which is taken over on success. Errors: kUnsupported if UCX is not
// available, kTimeout, kPeerLost, kCorrupt, and kSystem with UCX's text.
std::unique_ptr<Wire> over_ucx(std::unique_ptr<SocketWire>& sockets, const std::vector<int>& remote,
                               const DescribeRank& describe, Deadline deadline);

}  // namespace paceline
