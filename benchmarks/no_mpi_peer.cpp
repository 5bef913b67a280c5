#include "benchmarks/mpi_peer.h"

namespace paceline::benchmarks {

MpiPeerOrReason start_mpi_peer(int) {
  return {nullptr,
          "built without MPI; apt-get install libopenmpi-dev openmpi-bin, and configure again"};
}

}  // namespace paceline::benchmarks
