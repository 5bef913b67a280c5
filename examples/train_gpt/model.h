#pragma once

// The GPT that the flags choose, whole or divided among the ranks of an axis.

#include <cstdint>
#include <memory>

#include <torch/nn/module.h>

#include "paceline/collectives/group/process_group.h"
#include "paceline/models/gpt.h"
#include "paceline/train/named_choices.h"
#include "paceline/train/weights_file.h"

namespace train_gpt {

struct Options;

// Maps tokens [N, T] to logits in float32, computed with the precision of the flags.
class Model : public torch::nn::Module {
 public:
  // `parts`: the ranks that divide the layers among them; LibTorch's generator is seeded alike on
  // all. Error(kInvalid) when heads do not divide among them.
  Model(const Options& options, std::int64_t vocabulary,
        std::shared_ptr<paceline::ProcessGroup> parts);

  at::Tensor forward(const at::Tensor& tokens);
  // Mean cross entropy of what forward() returned with the tokens that come next.
  at::Tensor loss(const at::Tensor& logits, const at::Tensor& next_tokens) const;

  // Collective among the parts: the prompt [1, T] and at most `tokens` that follow.
  at::Tensor generate(const at::Tensor& prompt, std::int64_t tokens, std::uint64_t seed);
  // Collective among the parts: the whole model's, under GPT-2's names.
  paceline::TensorsByName weights();

 private:
  bool is_divided() const { return parts_->world_size() > 1; }
  paceline::models::Layers layers();

  const std::shared_ptr<paceline::ProcessGroup> parts_;  // owners: the mesh and this
  const paceline::train::Precision precision_;
  bool gathers_logits_ = false;  // training needs only this rank's part
  paceline::models::Gpt gpt_;
};

}  // namespace train_gpt
