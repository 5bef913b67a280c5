#include "paceline/training/models/gpt.h"

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"

namespace paceline::models {

GptImpl::GptImpl(const GptOptions& options, const Layers& layers)
    : options_(options), layers_(layers) {
  for (const auto size : {options.vocabulary, options.context, options.layers, options.width})
    check(size > 0, "gpt: vocabulary, context, layers and width must be positive, not {}", size);
  GptImpl::reset();
}

TransformerBlockOptions GptImpl::block_options() const {
  return {.attention = {.width = options_.width,
                        .heads = options_.heads,
                        .key_value_heads = options_.key_value_heads,
                        .rotary_base = options_.rotary_base,
                        .dropout = options_.dropout},
          .feed_forward = options_.feed_forward > 0 ? options_.feed_forward : 4 * options_.width};
}

void GptImpl::reset() {
  wte_ = layers_.embedding({options_.vocabulary, options_.width});
  register_module("wte", wte_.ptr());
  if (options_.rotary_base == 0)
    wpe_ = register_module("wpe", torch::nn::Embedding(options_.context, options_.width));
  h_ = register_module("h", TransformerBlocks(block_options(), layers_, options_.layers));
  ln_f_ = layers_.layer_norm(torch::nn::LayerNormOptions({options_.width}));
  register_module("ln_f", ln_f_.ptr());
  init_transformer(*this, 2 * options_.layers);
}

at::Tensor GptImpl::embed_from(const at::Tensor& tokens, std::int64_t position) {
  const std::int64_t end = position + tokens.size(1);
  check(end <= options_.context, "gpt: {} tokens are more than the context of {}", end,
        options_.context);
  at::Tensor states = wte_.forward<at::Tensor>(tokens);
  if (!wpe_.is_empty()) {
    const auto integers = at::device(tokens.device()).dtype(at::kLong);
    states = states + wpe_->forward(at::arange(position, end, integers));
  }
  return layers_.dropout(layers_.spread_out(states), options_.dropout, is_training());
}

std::vector<at::Tensor> GptImpl::embed(const std::vector<at::Tensor>& inputs) {
  return {embed_from(inputs.at(0), 0)};
}

at::Tensor GptImpl::logits_of(const at::Tensor& states) {
  return layers_.logits(ln_f_.forward<at::Tensor>(states), weight_of(wte_), {});
}

at::Tensor GptImpl::forward(const at::Tensor& tokens, GptPast* past) {
  at::Tensor states = embed_from(tokens, past == nullptr ? 0 : past->count);
  states = h_->forward(states, {}, past == nullptr ? nullptr : &past->layers);
  if (past != nullptr) past->count += tokens.size(1);
  return logits_of(states);
}

void GptImpl::require_same(const std::string& doing) const {
  if (layers_.require_same) layers_.require_same(doing);
}

GptPast GptImpl::make_past(std::int64_t sequences, std::int64_t tokens) const {
  return {.layers = h_->make_past(sequences, tokens)};
}

void GptImpl::share_tied_weight(const GptImpl& other) {
  wte_ = other.wte_;
  replace_module("wte", wte_.ptr());
}

void GptImpl::keep(BlockRange range) {
  const bool is_first = range.begin == 0, is_last = range.end == options_.layers;
  h_->keep(range);
  if (!is_first && !wpe_.is_empty()) {
    unregister_module("wpe");
    wpe_ = nullptr;
  }
  if (!is_first && !is_last) {
    unregister_module("wte");
    wte_ = torch::nn::AnyModule();
  }
  if (!is_last) {
    unregister_module("ln_f");
    ln_f_ = torch::nn::AnyModule();
  }
}

double operations_per_token(const GptOptions& options) {
  const auto width = static_cast<double>(options.width), heads = static_cast<double>(options.heads);
  const double key_value_heads =
      options.key_value_heads > 0 ? static_cast<double>(options.key_value_heads) : heads;
  const double feed_forward =
      options.feed_forward > 0 ? static_cast<double>(options.feed_forward) : 4 * width;
  const double attention = 2 * width * width * (1 + key_value_heads / heads);
  const double products = 2 * static_cast<double>(options.context) * width;
  const double block = attention + 2 * width * feed_forward + products;
  return 3 * 2 *
         (static_cast<double>(options.layers) * block +
          width * static_cast<double>(options.vocabulary));
}

at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& next_tokens) {
  return at::cross_entropy_loss(logits.flatten(0, 1), next_tokens.flatten());
}

}  // namespace paceline::models
