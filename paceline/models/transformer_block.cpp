#include "paceline/models/transformer_block.h"

#include <cmath>
#include <string_view>

#include <ATen/ATen.h>
#include <torch/nn/init.h>

namespace paceline::models {

TransformerBlockImpl::TransformerBlockImpl(const TransformerBlockOptions& options,
                                           const Layers& layers)
    : options_(options), layers_(layers) {
  TransformerBlockImpl::reset();
}

void TransformerBlockImpl::reset() {
  const std::int64_t width = options_.attention.width;
  const auto norm = torch::nn::LayerNormOptions({width}).eps(options_.norm_epsilon);
  ln_1_ = register_module("ln_1", torch::nn::LayerNorm(norm));
  attn_ = register_module("attn", Attention(options_.attention, layers_));
  ln_2_ = register_module("ln_2", torch::nn::LayerNorm(norm));
  c_fc_ = layers_.linear({width, options_.feed_forward});
  register_module("c_fc", c_fc_.ptr());
  c_proj_ = layers_.linear({options_.feed_forward, width});
  register_module("c_proj", c_proj_.ptr());
}

at::Tensor TransformerBlockImpl::feed_forward(const at::Tensor& states) {
  const at::Tensor inner =
      at::gelu(c_fc_.forward<at::Tensor>(states), options_.exact_gelu ? "none" : "tanh");
  return layers_.dropout(c_proj_.forward<at::Tensor>(inner), options_.attention.dropout,
                         is_training());
}

at::Tensor TransformerBlockImpl::forward(const at::Tensor& states, const at::Tensor& bias,
                                         KeyValues* past) {
  if (options_.norm_first) {
    const at::Tensor attended = states + attn_->forward(ln_1_->forward(states), bias, past);
    return attended + feed_forward(ln_2_->forward(attended));
  }
  const at::Tensor attended = ln_1_->forward(states + attn_->forward(states, bias, past));
  return ln_2_->forward(attended + feed_forward(attended));
}

void init_transformer(torch::nn::Module& module, std::int64_t num_branches) {
  constexpr double kDeviation = 0.02;
  const double last = kDeviation / std::sqrt(static_cast<double>(num_branches));
  for (auto& parameter : module.named_parameters()) {
    const std::string_view name = parameter.key();
    if (name.ends_with("bias")) {
      torch::nn::init::zeros_(parameter.value());
    } else if (parameter.value().dim() > 1) {
      torch::nn::init::normal_(parameter.value(), 0,
                               name.ends_with("c_proj.weight") ? last : kDeviation);
    }
  }
}

}  // namespace paceline::models
