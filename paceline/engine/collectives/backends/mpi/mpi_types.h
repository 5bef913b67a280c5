#pragma once

// Paceline's element types and reductions as MPI's. Where MPI has none, or one that behaves
// otherwise, it gets a type of so many bytes and an operation that calls Paceline's kernel.
//
// Requires: MPI runs. Thread safety: any thread. What is made lives as long as MPI.

#include <mpi.h>

#include "paceline/engine/collectives/reduce_op.h"
#include "paceline/engine/core/dtype.h"

namespace paceline::mpi {

MPI_Datatype type_of(Dtype dtype);
// A mean is a sum here; the caller divides.
MPI_Op operation_of(ReduceOp op, Dtype dtype);

}  // namespace paceline::mpi
