#pragma once

// The embedding and the cross-entropy for a vocabulary that is divided among the ranks of a group.

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
#include "paceline/training/models/divided_layer.h"
#include "paceline/training/models/layers.h"

namespace paceline {

// Embeds tokens. The vocabulary is cut into equal parts, and rank r has the rows of the r-th part.
// A rank embeds tokens of other ranks as zeros, and an all-reduce adds up the embedded tokens; the
// sum is exact, because all summands but one are zero.
//
// Each rank gets its part of the weights that torch::nn::Embedding initialises from the same random
// numbers (parallel_linear.h).
//
// Error(kInvalid) if the number of ranks does not divide the vocabulary (pad it: each unused token
// costs one row), and for tokens outside the whole vocabulary; Error(kUnsupported) for options
// other than the sizes.
//
// Thread safety: none; one thread trains.
class VocabParallelEmbeddingImpl : public torch::nn::Cloneable<VocabParallelEmbeddingImpl>,
                                   public models::DividedLayer {
 public:
  VocabParallelEmbeddingImpl(const torch::nn::EmbeddingOptions& options, GroupPtr group);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  // Tokens [...], the same on every rank -> [..., width], the same on every rank.
  at::Tensor forward(const at::Tensor& tokens);
  std::optional<models::Division> division_of(const std::string& parameter) const override;

  at::Tensor weight;  // [vocabulary / ranks, width]

 private:
  torch::nn::EmbeddingOptions options_;
  GroupPtr group_;
  models::Division division_;
};
TORCH_MODULE(VocabParallelEmbedding);

// The cross-entropy of logits whose vocabulary is divided among the ranks, as PyTorch's
// loss_parallel() computes it: the logits are never gathered. For each row the ranks exchange three
// numbers: the largest logit, the sum of exponentials, and the target's logit.
//
//   auto logits = model->forward(tokens);        // [N, T, vocabulary / ranks]
//   vocab_parallel_cross_entropy(group, logits, next_tokens).backward();
//
// Takes logits [..., vocabulary / ranks] and targets [...]; the targets are the same on every rank.
// The result is the same on every rank, and equals torch::cross_entropy on the whole logits up to
// rounding. Rows whose target is `ignore_index` are left out. `reduction`: at::Reduction::Mean
// (over the rows that are not left out), Sum, or None: a loss for each row. 16-bit logits are
// widened to float32 internally. Second derivatives are not supported. Error(kInvalid) for shapes
// that do not match and for targets outside the vocabulary.
//
// Thread safety: same as ProcessGroup. The autograd graph keeps the group alive.
at::Tensor vocab_parallel_cross_entropy(const GroupPtr& group, const at::Tensor& logits,
                                        const at::Tensor& targets, std::int64_t ignore_index = -100,
                                        std::int64_t reduction = at::Reduction::Mean);

}  // namespace paceline
