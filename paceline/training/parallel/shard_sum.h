#pragma once

// The sum of one bucket's gradients over the logical shards of a rank
// (engine/core/logical_shards.h), in the order of the engine's fixed tree: a binary counter of
// partial sums, each of 2^k neighbouring shards, so that no more than log2(shards) + 1 of them are
// kept.
//
// Thread safety: none.

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace paceline {

class ShardSum {
 public:
  // The gradients of the next shard, which is not the last. `may_keep`: nobody else uses their
  // memory from now on; otherwise they are copied.
  void add(const at::Tensor& gradients, bool may_keep);
  // Those of the last shard become the sum of all; the next step begins.
  void finish(const at::Tensor& gradients);
  // Forgets what a step has added up.
  void clear() { count_ = 0; }

 private:
  std::vector<at::Tensor> levels_;  // [k]: of 2^k shards where bit k of the count is set
  std::uint64_t count_ = 0;
};

}  // namespace paceline
