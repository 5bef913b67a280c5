#include "paceline/engine/collectives/backends/reduce_contributions.h"

#include "paceline/engine/collectives/backends/library_call.h"
#include "paceline/engine/collectives/kernels/reduce.h"

namespace paceline {

void reduce_contributions(const Collective& call, int rank, int world_size,
                          std::vector<std::byte>& contributions,
                          const std::function<void(const Collective& moved)>& move) {
  contributions.resize(bytes_of(call) * static_cast<std::size_t>(world_size));
  Collective moved = call;
  moved.op = call.op == Op::kReduceScatter ? Op::kAllToAll : Op::kAllGather;
  moved.output = contributions.data();
  move(moved);
  if (call.op == Op::kReduce && rank != call.root) return;
  std::vector<const std::byte*> sources;
  for (int giver = 0; giver < world_size; ++giver) {
    sources.push_back(block_of<const std::byte>(contributions.data(), call, giver));
  }
  reduce(sources, call.output, call.count, call.dtype, call.reduce_op, call.divisor);
}

}  // namespace paceline
