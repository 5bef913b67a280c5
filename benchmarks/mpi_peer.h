#pragma once

// Open MPI beside Paceline in one process, for side-by-side measurements. The build picks
// mpi_peer.cpp, or no_mpi_peer.cpp where no MPI is installed. Thread safety: none.

#include <memory>
#include <span>
#include <string>

namespace paceline::benchmarks {

class MpiPeer {
 public:
  virtual ~MpiPeer() = default;
  // In place, a sum over all ranks.
  virtual void all_reduce(std::span<float> elements) = 0;
  // For example "Open MPI v4.1.4".
  virtual std::string version() const = 0;
};

struct MpiPeerOrReason {
  std::unique_ptr<MpiPeer> peer;
  std::string reason;  // why there is none
};

// Collective over the job when it was started by mpirun. Requires: called once, first thing.
MpiPeerOrReason start_mpi_peer(int world_size);

}  // namespace paceline::benchmarks
