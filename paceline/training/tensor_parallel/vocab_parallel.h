#pragma once

// The embedding of tokens of which each rank of a group has a part of the vocabulary: rank r has
// the rows of the r-th of as many equal parts. A token that another rank has is zeros here, and an
// all-reduce of the embedded tokens puts them together; exactly, because all else is zero.
//
// The weights are those that torch::nn::Embedding makes from the same random numbers, each rank its
// part (parallel_linear.h).
//
// Error(kInvalid) for a vocabulary that does not divide (pad it: tokens that never come cost a row
// each) and for tokens outside the whole vocabulary; Error(kUnsupported) for options other than the
// sizes.
//
// Thread safety: that of a module; one thread trains.

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/options/embedding.h>
#include <torch/nn/pimpl.h>

#include "paceline/training/autograd/differentiable_collectives.h"
#include "paceline/training/models/layers.h"

namespace paceline {

class VocabParallelEmbeddingImpl : public torch::nn::Cloneable<VocabParallelEmbeddingImpl>,
                                   public models::DividedLayer {
 public:
  VocabParallelEmbeddingImpl(const torch::nn::EmbeddingOptions& options, GroupPtr group);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  // Tokens [...], the same on every rank -> [..., width], likewise.
  at::Tensor forward(const at::Tensor& tokens);
  std::optional<models::Division> division_of(const std::string& parameter) const override;

  at::Tensor weight;  // [vocabulary / ranks, width]

 private:
  torch::nn::EmbeddingOptions options_;
  GroupPtr group_;
  models::Division division_;
};
TORCH_MODULE(VocabParallelEmbedding);

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
