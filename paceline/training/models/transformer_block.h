#pragma once

// One layer of a transformer: attention, then two linear layers with GELU between them, each around
// a residual connection. With the norms before them it is GPT-2's, with the norms behind BERT's.

#include <cstdint>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>

#include "paceline/training/models/attention.h"
#include "paceline/training/models/layers.h"

namespace paceline::models {

struct TransformerBlockOptions {
  AttentionOptions attention;
  std::int64_t feed_forward = 3072;  // width between the two linear layers
  bool norm_first = true;
  double norm_epsilon = 1e-5;
  bool exact_gelu = false;  // by the error function, not by its approximation with tanh
};

class TransformerBlockImpl : public torch::nn::Cloneable<TransformerBlockImpl> {
 public:
  explicit TransformerBlockImpl(const TransformerBlockOptions& options = {},
                                const Layers& layers = {});
  void reset() override;

  // [N, T, width] -> [N, T, width]; `bias` and `past` are the attention's.
  at::Tensor forward(const at::Tensor& states, const at::Tensor& bias = {},
                     KeyValues* past = nullptr);

  KeyValues make_past(std::int64_t sequences, std::int64_t positions) const {
    return attn_->make_past(sequences, positions);
  }

 private:
  at::Tensor feed_forward(const at::Tensor& states);

  TransformerBlockOptions options_;
  Layers layers_;
  torch::nn::AnyModule ln_1_, ln_2_, c_fc_, c_proj_;
  Attention attn_{nullptr};
};
TORCH_MODULE(TransformerBlock);

// GPT-2's and BERT's initial values: weights normal with a deviation of 0.02, those that end a
// residual branch (c_proj) divided by the square root of `num_branches`; biases 0; norms are left.
// A layer that holds a part of its weights (division.h) gets that part of the whole layer's.
void init_transformer(torch::nn::Module& module, std::int64_t num_branches);

}  // namespace paceline::models
