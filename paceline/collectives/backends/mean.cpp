#include "paceline/collectives/backends/mean.h"

#include <algorithm>
#include <array>
#include <vector>

#include "paceline/collectives/kernels/reduce.h"

namespace paceline {
namespace {

// The mean of the sum and of zeros: the kernel knows all types and how they are rounded.
void divide(std::byte* data, std::size_t count, Dtype dtype, int divisor) {
  constexpr std::size_t kPieceBytes = 4096;
  static constexpr std::array<std::byte, kPieceBytes> kZeros{};
  const std::size_t piece = kPieceBytes / size_of(dtype);
  std::vector<const std::byte*> sources(static_cast<std::size_t>(divisor), kZeros.data());
  for (std::size_t begin = 0; begin < count; begin += piece) {
    std::byte* at = data + begin * size_of(dtype);
    sources[0] = at;
    reduce(sources, at, std::min(piece, count - begin), dtype, ReduceOp::kMean);
  }
}

}  // namespace

void finish_mean(const Collective& call, int rank, int world_size) {
  const bool has_result = call.op != Op::kReduce || rank == call.root;
  if (!reduces(call.op) || call.reduce_op != ReduceOp::kMean || !has_result) return;
  divide(call.output, call.count, call.dtype, world_size);
}

}  // namespace paceline
