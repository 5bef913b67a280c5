#pragma once

// Cross-entropy of logits of which each rank has a part of the vocabulary, as PyTorch's
// loss_parallel() computes it: the logits are never gathered. The ranks exchange three numbers for
// each row: the largest logit, the sum of exponentials, and the target's logit.
//
//   auto logits = model->forward(tokens);        // [N, T, vocabulary / ranks]
//   vocab_parallel_cross_entropy(group, logits, next_tokens).backward();
//
// 16-bit logits are widened to float32 inside. There is no second derivative.
//
// Thread safety: that of ProcessGroup. The graph keeps the group alive.

#include <cstdint>

#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>

#include "paceline/training/autograd/regions.h"

namespace paceline {

struct VocabParallelLossOptions {
  std::int64_t ignore_index = -100;  // rows with this target count for nothing
  // at::Reduction::Mean (over the rows that count), Sum, or None: a loss for each row.
  std::int64_t reduction = at::Reduction::Mean;
};

// Logits [..., vocabulary / ranks] and targets [...], the same on every rank; the result is the
// same on every rank, that of torch::cross_entropy on the whole logits but for rounding.
// Error(kInvalid) for shapes that do not fit and targets outside of the vocabulary.
at::Tensor vocab_parallel_cross_entropy(const GroupPtr& group, const at::Tensor& logits,
                                        const at::Tensor& targets,
                                        const VocabParallelLossOptions& options = {});

}  // namespace paceline
