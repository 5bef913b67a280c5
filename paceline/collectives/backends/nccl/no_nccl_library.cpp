#include "paceline/collectives/backends/nccl/nccl_library.h"

namespace paceline {

BackendInfo nccl_info() {
  return {.name = "nccl",
          .device = Device::kCuda,
          .available = false,
          .text = PACELINE_NO_NCCL,
          .advice =
              "install the CUDA toolkit and NCCL (nccl.h, libnccl.so), then build with "
              "-DPACELINE_WITH_NCCL=ON"};
}

std::unique_ptr<Library> connect_nccl(const LibraryContext& /*context*/) {
  throw backend_missing(nccl_info());
}

}  // namespace paceline
