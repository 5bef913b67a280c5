#pragma once

// MPI (Open MPI or MPICH, chosen when Paceline is built), under its own launcher: all operations
// and types, at most 2^31-1 elements a rank in one call. It uses the non-blocking collectives and
// polls, so that deadlines hold and a dead peer is noticed; what MPI reduces otherwise than
// Paceline (16-bit floats, bool, NaN in min and max) it reduces with Paceline's kernel.
//
// After an error MPI may go on reading and writing the buffers of the failed call until the process
// ends: there is no way to cancel a collective. And mpirun itself ends a job when one of its ranks
// died. Thread safety: that of Library; MPI must offer MPI_THREAD_MULTIPLE.

#include <memory>

#include "paceline/engine/collectives/backends/backend_list.h"
#include "paceline/engine/collectives/backends/library.h"

namespace paceline {

BackendInfo mpi_info();
// Collective. Error(kInvalid) when MPI's world is not the job's, which it is only under MPI's own
// launcher; kUnsupported where MPI is not built or lacks threads; kSystem for MPI's own errors.
std::unique_ptr<Library> connect_mpi(const LibraryContext& context);

}  // namespace paceline
