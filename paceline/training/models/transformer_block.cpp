#include "paceline/training/models/transformer_block.h"

#include <cmath>
#include <string>

#include <ATen/ATen.h>
#include <torch/nn/init.h>

#include "paceline/training/models/division.h"

namespace paceline::models {

TransformerBlockImpl::TransformerBlockImpl(const TransformerBlockOptions& options,
                                           const Layers& layers)
    : options_(options), layers_(layers) {
  TransformerBlockImpl::reset();
}

void TransformerBlockImpl::reset() {
  const std::int64_t width = options_.attention.width;
  const auto norm = torch::nn::LayerNormOptions({width}).eps(options_.norm_epsilon);
  const InnerFeatures inner{.counts = {options_.feed_forward}};
  ln_1_ = layers_.layer_norm(norm);
  register_module("ln_1", ln_1_.ptr());
  attn_ = register_module("attn", Attention(options_.attention, layers_));
  ln_2_ = layers_.layer_norm(norm);
  register_module("ln_2", ln_2_.ptr());
  c_fc_ = layers_.make_first({width, options_.feed_forward}, inner);
  register_module("c_fc", c_fc_.ptr());
  c_proj_ = layers_.make_last({options_.feed_forward, width}, inner);
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
    const at::Tensor attended =
        states + attn_->forward(ln_1_.forward<at::Tensor>(states), bias, past);
    return attended + feed_forward(ln_2_.forward<at::Tensor>(attended));
  }
  const at::Tensor attended =
      ln_1_.forward<at::Tensor>(states + attn_->forward(states, bias, past));
  return ln_2_.forward<at::Tensor>(attended + feed_forward(attended));
}

void init_transformer(torch::nn::Module& module, std::int64_t num_branches) {
  constexpr double kDeviation = 0.02;
  const double last = kDeviation / std::sqrt(static_cast<double>(num_branches));
  visit_parameters(module, [&](const std::string& name, at::Tensor& parameter,
                               const std::optional<Division>& division) {
    if (name.ends_with("bias")) {
      torch::nn::init::zeros_(parameter);
      return;
    }
    if (parameter.dim() < 2) return;
    const double deviation = name.ends_with("c_proj.weight") ? last : kDeviation;
    if (!division) {
      torch::nn::init::normal_(parameter, 0, deviation);
      return;
    }
    // The whole model's random numbers, whatever part of it is here.
    const at::NoGradGuard no_grad;
    const at::Tensor whole =
        at::empty(division->whole_sizes(parameter.sizes()), parameter.options());
    parameter.copy_(division->part_of(torch::nn::init::normal_(whole, 0, deviation)));
  });
}

}  // namespace paceline::models
