#include "paceline/training/models/attention.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"

namespace paceline::models {

AttentionImpl::AttentionImpl(const AttentionOptions& options, const Layers& layers)
    : options_(options), layers_(layers) {
  check(options.heads > 0 && options.width % options.heads == 0,
        "attention: {} heads do not divide a width of {}", options.heads, options.width);
  check(options.key_value_heads >= 0 && options.heads % key_value_heads() == 0,
        "attention: {} heads of keys and values do not divide {} heads", options.key_value_heads,
        options.heads);
  check(options.rotary_base == 0 || head_width() % 2 == 0,
        "attention: rotary positions want heads of an even width, not of {}", head_width());
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

// Of [N, heads, T, width], by the angle of each position.
at::Tensor AttentionImpl::turned(const at::Tensor& heads, std::int64_t first_position) const {
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
    queries = turned(queries, before);
    keys = turned(keys, before);
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

}  // namespace paceline::models
