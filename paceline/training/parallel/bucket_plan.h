#pragma once

// Which gradients travel together. A pure function, the same on every rank.
//
// Buckets are filled in the order in which gradients become ready. The first bucket is small, so
// that communication begins early in the backward pass; the others are up to `cap_bytes`. The rule
// is that of PyTorch's DistributedDataParallel (a bucket is closed once it has reached its limit),
// one type per bucket.

#include <cstddef>
#include <limits>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/training/tensor/flat_layout.h"

namespace paceline {

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

}  // namespace paceline
