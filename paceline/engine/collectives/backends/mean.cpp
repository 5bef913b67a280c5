#include "paceline/engine/collectives/backends/mean.h"

#include <array>

#include "paceline/engine/collectives/kernels/reduce.h"

namespace paceline {

// The mean of one contribution, the sum: the kernel knows all types and how they are rounded.
void finish_mean(const Collective& call, int rank, int world_size) {
  const bool has_result = call.op != Op::kReduce || rank == call.root;
  if (!reduces(call.op) || call.reduce_op != ReduceOp::kMean || !has_result) return;
  const std::array<const std::byte*, 1> sum{call.output};
  reduce(sum, call.output, call.count, call.dtype, ReduceOp::kMean, divisor_of(call, world_size));
}

}  // namespace paceline
