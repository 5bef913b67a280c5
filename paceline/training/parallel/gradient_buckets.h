#pragma once

// Which gradients travel together. A pure function, the same on every rank.
//
// Buckets are filled in the order in which gradients become ready. The first bucket is small, so
// that communication begins early in the backward pass; the others are up to `cap_bytes`. The rule
// is that of PyTorch's DistributedDataParallel (a bucket is closed once it has reached its limit),
// one type per bucket.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/training/tensor/tensor_view.h"

namespace paceline {

// From here on the copy into a bucket costs more than an all-reduce of its own.
inline constexpr std::size_t kLargeGradientBytes = 512 << 10;

struct BucketLimits {
  std::size_t first_bytes = 1 << 20;
  std::size_t cap_bytes = 25 << 20;
  // A gradient of at least this size is alone: it needs no bucket's memory.
  std::size_t alone_bytes = std::numeric_limits<std::size_t>::max();
};

struct BucketPlan {
  FlatLayout layout;                    // of the gradients of `parameters`, in that order
  std::vector<std::size_t> parameters;  // indices into all parameters
  bool is_alone = false;                // one gradient of at least alone_bytes
};

// `order`: indices into `parameters`, each at most once; those that are not in it get no place.
std::vector<BucketPlan> plan_buckets(const std::vector<at::Tensor>& parameters,
                                     const std::vector<std::size_t>& order,
                                     const BucketLimits& limits);

// The sum of one bucket's gradients over the logical shards of a rank
// (engine/core/logical_shards.h), in the order of the engine's fixed tree: a binary counter of
// partial sums, each of 2^k neighbouring shards, so that no more than log2(shards) + 1 of them are
// kept.
//
// Thread safety: none.

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
