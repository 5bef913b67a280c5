#include "paceline/collectives/backends/mpi/mpi_library.h"

namespace paceline {

BackendInfo mpi_info() {
  return {.name = "mpi",
          .device = Device::kCpu,
          .available = false,
          .text = PACELINE_NO_MPI,
          .advice =
              "apt-get install libopenmpi-dev openmpi-bin (or libmpich-dev mpich), then build "
              "with -DPACELINE_WITH_MPI=ON"};
}

std::unique_ptr<Library> connect_mpi(const LibraryContext& /*context*/) {
  throw backend_missing(mpi_info());
}

}  // namespace paceline
