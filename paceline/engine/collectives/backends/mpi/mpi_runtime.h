#pragma once

// Starts and ends MPI in this process, and maps Paceline's types and reductions to MPI's. A process
// can start MPI only once and end it only once: the first group that needs MPI starts it, and the
// process's exit ends it. A program that has called MPI_Init_thread itself must also end MPI
// itself.
//
// Thread safety: every function may be called from any thread.

#include <cstddef>
#include <string>
#include <vector>

#include <mpi.h>

#include "paceline/engine/collectives/backends/library.h"
#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/core/dtype_traits.h"

namespace paceline::mpi {

// The version, as "Open MPI v4.1.4". May be called before start().
std::string version();

// Starts MPI unless it is running. Error(kInvalid) if its world is not the job's.
void start(const LibraryContext& context);

// Throws Error(kSystem) with MPI's text unless `code` is MPI_SUCCESS.
void require(int code, const char* what);

// True between start() and the end of MPI.
bool is_running();

// Called if a peer is lost or an operation cannot be completed. MPI_Finalize is then not called,
// because it could wait forever, and `memory`, which MPI may still use, is kept.
void abandon(std::vector<std::byte> memory);

// Paceline's element types and reductions as MPI's. If MPI lacks a type or reduction, or its
// reduction behaves differently, MPI gets a type of the same size and an operation that calls
// Paceline's kernel.
//
// Requires: MPI is running. Thread safety: any thread. The types and operations live as long as
// MPI.
MPI_Datatype type_of(Dtype dtype);
// A mean is a sum here; the caller divides.
MPI_Op operation_of(ReduceOp op, Dtype dtype);

}  // namespace paceline::mpi
