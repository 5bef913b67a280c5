#include "benchmarks/mpi_peer.h"

#include <cstdlib>

#include <mpi.h>

#include "paceline/core/check.h"

namespace paceline::benchmarks {
namespace {

class OpenMpi : public MpiPeer {
 public:
  OpenMpi() { check(MPI_Init(nullptr, nullptr) == MPI_SUCCESS, "MPI_Init failed"); }
  ~OpenMpi() override { MPI_Finalize(); }
  OpenMpi(const OpenMpi&) = delete;
  OpenMpi& operator=(const OpenMpi&) = delete;

  void all_reduce(std::span<float> elements) override {
    const int result =
        MPI_Allreduce(MPI_IN_PLACE, elements.data(), static_cast<int>(elements.size()), MPI_FLOAT,
                      MPI_SUM, MPI_COMM_WORLD);
    check(result == MPI_SUCCESS, "MPI_Allreduce failed");
  }

  std::string version() const override {
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(text, &length);
    const std::string whole(text, static_cast<std::size_t>(length));
    return whole.substr(0, whole.find(','));
  }
};

}  // namespace

MpiPeerOrReason start_mpi_peer(int world_size) {
  // Without mpirun, MPI_Init would make a world of one.
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr)
    return {nullptr, "not started by mpirun; try: mpirun -np 2 PROGRAM"};
  if (world_size < 2) return {nullptr, "one rank has nothing to reduce"};
  return {std::make_unique<OpenMpi>(), ""};
}

}  // namespace paceline::benchmarks
