#pragma once

// MPI in this process, and what it calls Paceline's types and reductions. MPI can be started once
// and ended once: the first group that needs it starts it, the process's exit ends it. A program
// that called MPI_Init_thread itself keeps both to itself.
//
// Thread safety: every function may be called from any thread.

#include <cstddef>
#include <string>
#include <vector>

#include <mpi.h>

#include "paceline/engine/collectives/backends/library.h"
#include "paceline/engine/collectives/op.h"
#include "paceline/engine/core/dtype.h"

namespace paceline::mpi {

// "Open MPI v4.1.4". May be called before start().
std::string version();

// Starts MPI unless it runs. Error(kInvalid) when its world is not the job's.
void start(const LibraryContext& context);

// Throws Error(kSystem) with MPI's text unless `code` is MPI_SUCCESS.
void require(int code, const char* what);

// True between start() and the end.
bool is_running();

// A peer is lost, or an operation cannot be completed: MPI is not ended in order any more, since
// that could wait forever, and `memory`, which MPI may still use, is kept.
void abandon(std::vector<std::byte> memory);

// Paceline's element types and reductions as MPI's. Where MPI has none, or one that behaves
// otherwise, it gets a type of so many bytes and an operation that calls Paceline's kernel.
//
// Requires: MPI runs. Thread safety: any thread. What is made lives as long as MPI.

MPI_Datatype type_of(Dtype dtype);
// A mean is a sum here; the caller divides.
MPI_Op operation_of(ReduceOp op, Dtype dtype);

}  // namespace paceline::mpi
