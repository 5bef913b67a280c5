#include "paceline/training/models/transformer.h"

#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <torch/nn/init.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/models/divided_layer.h"
#include "paceline/training/models/layer_functions.h"
#include "paceline/training/models/layers.h"

namespace paceline::models {

AttentionImpl::AttentionImpl(const AttentionOptions& options, const Layers& layers)
    : options_(options), layers_(layers) {
  check(options.heads > 0 && options.width % options.heads == 0,
        "attention: {} heads do not divide a width of {}", options.heads, options.width);
  check(options.key_value_heads >= 0 && options.heads % key_value_heads() == 0,
        "attention: {} heads of keys and values do not divide {} heads", options.key_value_heads,
        options.heads);
  check(options.rotary_base == 0 || head_width() % 2 == 0,
        "attention: rotary positions need heads of an even width, not of {}", head_width());
  AttentionImpl::reset();
}

void AttentionImpl::reset() {
  const std::int64_t projected = (options_.heads + 2 * key_value_heads()) * head_width();
  c_attn_ = layers_.make_first({options_.width, projected},
                               {.block = "heads",
                                .width = head_width(),
                                .counts = {options_.heads, key_value_heads(), key_value_heads()}});
  register_module("c_attn", c_attn_.ptr());
  c_proj_ =
      layers_.make_last({options_.width, options_.width},
                        {.block = "heads", .width = head_width(), .counts = {options_.heads}});
  register_module("c_proj", c_proj_.ptr());
}

AttentionImpl::Heads AttentionImpl::heads_in(std::int64_t features) const {
  const std::int64_t all = options_.heads + 2 * key_value_heads();
  const std::int64_t here = features / head_width();
  return {.queries = here * options_.heads / all, .keys = here * key_value_heads() / all};
}

// Rotates [N, heads, T, width] by the angles of each position.
at::Tensor AttentionImpl::apply_rotary(const at::Tensor& heads, std::int64_t first_position) const {
  const std::int64_t half = head_width() / 2;
  const auto options = at::device(heads.device()).dtype(at::kDouble);
  const at::Tensor rates =
      at::pow(options_.rotary_base, at::arange(half, options) / -static_cast<double>(half));
  const at::Tensor positions = at::arange(first_position, first_position + heads.size(2), options);
  const at::Tensor angles = at::outer(positions, rates);  // [T, half]
  const at::Tensor cosines = angles.cos().to(heads.scalar_type());
  const at::Tensor sines = angles.sin().to(heads.scalar_type());
  const at::Tensor left = heads.narrow(-1, 0, half);
  const at::Tensor right = heads.narrow(-1, half, half);
  return at::cat({left * cosines - right * sines, right * cosines + left * sines}, -1);
}

at::Tensor AttentionImpl::remember(const at::Tensor& now, at::Tensor& all,
                                   std::int64_t count) const {
  const std::int64_t end = count + now.size(2);
  check(now.size(0) == all.size(0) && end <= all.size(2),
        "attention: no room for positions {} to {} of {} sequences; there is room for {} of {}",
        count, end - 1, now.size(0), all.size(2), all.size(0));
  const at::NoGradGuard no_grad;
  all.narrow(2, count, now.size(2)).copy_(now);
  return all.narrow(2, 0, end);
}

at::Tensor AttentionImpl::forward(const at::Tensor& states, const at::Tensor& bias,
                                  KeyValues* past) {
  const at::Tensor projected = c_attn_.forward<at::Tensor>(states);
  const std::int64_t sequences = projected.size(0);
  const std::int64_t length = projected.size(1);
  const std::int64_t before = past == nullptr ? 0 : past->count;
  const Heads here = heads_in(projected.size(2));
  const auto heads = projected.view({sequences, length, here.queries + 2 * here.keys, head_width()})
                         .transpose(1, 2)
                         .split_with_sizes({here.queries, here.keys, here.keys}, 1);
  at::Tensor queries = heads[0], keys = heads[1], values = heads[2];
  if (options_.rotary_base > 0) {
    queries = apply_rotary(queries, before);
    keys = apply_rotary(keys, before);
  }
  if (past != nullptr) {
    keys = remember(keys, past->keys, before);
    values = remember(values, past->values, before);
    past->count += length;
  }
  const std::int64_t group = options_.heads / key_value_heads();
  if (group > 1) {
    keys = keys.repeat_interleave(group, 1);
    values = values.repeat_interleave(group, 1);
  }
  at::Tensor scores = at::matmul(queries * (1 / std::sqrt(static_cast<double>(head_width()))),
                                 keys.transpose(-2, -1));
  if (options_.is_causal && length > 1) {
    const at::Tensor later =
        at::ones({length, before + length}, at::device(scores.device()).dtype(at::kBool))
            .triu(before + 1);
    scores = scores.masked_fill(later, -std::numeric_limits<double>::infinity());
  }
  if (bias.defined()) scores = scores + bias;
  const at::Tensor weights =
      layers_.drop_inner(scores.softmax(-1), options_.dropout, is_training());
  const at::Tensor joined = at::matmul(weights, values)
                                .transpose(1, 2)
                                .reshape({sequences, length, here.queries * head_width()});
  return layers_.dropout(c_proj_.forward<at::Tensor>(joined), options_.dropout, is_training());
}

KeyValues AttentionImpl::make_past(std::int64_t sequences, std::int64_t positions) const {
  const at::Tensor like = c_attn_.ptr()->parameters().front();
  const auto make = [&] {
    return at::empty({sequences, heads_in(like.size(0)).keys, positions, head_width()},
                     like.options().requires_grad(false));
  };
  return {.keys = make(), .values = make()};
}

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
    // Draws the whole layer's values and copies the part that this layer holds.
    const at::NoGradGuard no_grad;
    const at::Tensor whole =
        at::empty(division->whole_sizes(parameter.sizes()), parameter.options());
    parameter.copy_(division->part_of(torch::nn::init::normal_(whole, 0, deviation)));
  });
}

TransformerBlocksImpl::TransformerBlocksImpl(const TransformerBlockOptions& options,
                                             const Layers& layers, std::int64_t count)
    : options_(options), layers_(layers), range_{0, count} {
  TransformerBlocksImpl::reset();
}

void TransformerBlocksImpl::reset() {
  blocks_.clear();
  for (std::int64_t number = range_.begin; number < range_.end; ++number) {
    blocks_.push_back(register_module(std::to_string(number), TransformerBlock(options_, layers_)));
  }
}

void TransformerBlocksImpl::keep(BlockRange range) {
  std::vector<TransformerBlock> kept;
  for (std::int64_t number = range_.begin; number < range_.end; ++number) {
    if (number >= range.begin && number < range.end) {
      kept.push_back(blocks_[static_cast<std::size_t>(number - range_.begin)]);
    } else {
      unregister_module(std::to_string(number));
    }
  }
  range_ = range;
  blocks_ = std::move(kept);
}

at::Tensor TransformerBlocksImpl::forward(at::Tensor states, const at::Tensor& bias,
                                          std::vector<KeyValues>* past) {
  for (std::size_t i = 0; i < blocks_.size(); ++i)
    states = blocks_[i]->forward(states, bias, past == nullptr ? nullptr : &(*past)[i]);
  return states;
}

std::vector<KeyValues> TransformerBlocksImpl::make_past(std::int64_t sequences,
                                                        std::int64_t positions) const {
  std::vector<KeyValues> past;
  for (const TransformerBlock& block : blocks_)
    past.push_back(block->make_past(sequences, positions));
  return past;
}

}  // namespace paceline::models
