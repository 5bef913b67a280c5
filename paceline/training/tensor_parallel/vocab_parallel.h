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

#include <iosfwd>
#include <optional>
#include <string>

#include <torch/nn/cloneable.h>
#include <torch/nn/options/embedding.h>
#include <torch/nn/pimpl.h>

#include "paceline/training/autograd/regions.h"
#include "paceline/training/models/division.h"

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

}  // namespace paceline
