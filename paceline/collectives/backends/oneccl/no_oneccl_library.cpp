#include "paceline/collectives/backends/oneccl/oneccl_library.h"

namespace paceline {

BackendInfo oneccl_info() {
  return {.name = "oneccl",
          .device = Device::kCpu,
          .available = false,
          .text = PACELINE_NO_ONECCL,
          .advice =
              "pip install oneccl-devel impi-devel in a virtual environment, then build with "
              "-DPACELINE_ONECCL=FOLDER of the environment"};
}

std::unique_ptr<Library> connect_oneccl(const LibraryContext& /*context*/) {
  throw backend_missing(oneccl_info());
}

}  // namespace paceline
