#include "paceline/collectives/backends/gloo/gloo_library.h"

namespace paceline {

BackendInfo gloo_info() {
  return {.name = "gloo",
          .device = Device::kCpu,
          .available = false,
          .text = PACELINE_NO_GLOO,
          .advice = "apt-get install libgloo-dev, then build with -DPACELINE_WITH_GLOO=ON"};
}

std::unique_ptr<Library> connect_gloo(const LibraryContext& /*context*/) {
  throw backend_missing(gloo_info());
}

}  // namespace paceline
