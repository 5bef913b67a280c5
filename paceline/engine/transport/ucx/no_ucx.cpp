#include "paceline/engine/core/check.h"
#include "paceline/engine/transport/ucx/ucx.h"

namespace paceline {

UcxInfo ucx_info() {
  return {.available = false,
          .text = PACELINE_NO_UCX,
          .advice = "apt install libucx-dev, then build again",
          .rdma_devices = {}};
}

std::unique_ptr<Wire> over_ucx(std::unique_ptr<SocketWire>& /*sockets*/,
                               const std::vector<int>& /*remote*/, const DescribeRank& /*describe*/,
                               Deadline /*deadline*/) {
  const UcxInfo info = ucx_info();
  fail(ErrorCode::kUnsupported, "transport ucx is not part of this build: {}; to get it: {}",
       info.text, info.advice);
}

}  // namespace paceline
