#include "paceline/models/gpt.h"

#include <ATen/ATen.h>

#include "paceline/core/check.h"

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
  h_ = register_module("h", torch::nn::ModuleList());
  for (std::int64_t layer = 0; layer < options_.layers; ++layer)
    h_->push_back(TransformerBlock(block_options(), layers_));
  ln_f_ = layers_.layer_norm(torch::nn::LayerNormOptions({options_.width}));
  register_module("ln_f", ln_f_.ptr());
  init_transformer(*this, 2 * options_.layers);
}

at::Tensor GptImpl::forward(const at::Tensor& tokens, GptPast* past) {
  const std::int64_t before = past == nullptr ? 0 : past->count;
  at::Tensor states =
      layers_.spread_out(embed_tokens(tokens, before, options_.context, wte_, wpe_));
  states = layers_.dropout(states, options_.dropout, is_training());
  for (std::size_t layer = 0; layer < h_->size(); ++layer) {
    states = h_->at<TransformerBlockImpl>(layer).forward(
        states, {}, past == nullptr ? nullptr : &past->layers[layer]);
  }
  if (past != nullptr) past->count += tokens.size(1);
  return layers_.logits(ln_f_.forward<at::Tensor>(states), weight_of(wte_), {});
}

GptPast GptImpl::make_past(std::int64_t sequences, std::int64_t tokens) const {
  GptPast past;
  for (std::size_t layer = 0; layer < h_->size(); ++layer) {
    past.layers.push_back(h_->at<TransformerBlockImpl>(layer).make_past(sequences, tokens));
  }
  return past;
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

at::Tensor embed_tokens(const at::Tensor& tokens, std::int64_t before, std::int64_t context,
                        torch::nn::AnyModule& words, torch::nn::Embedding& positions) {
  const std::int64_t end = before + tokens.size(1);
  check(end <= context, "gpt: {} tokens are more than the context of {}", end, context);
  const at::Tensor states = words.forward<at::Tensor>(tokens);
  if (positions.is_empty()) return states;
  return states +
         positions->forward(at::arange(before, end, at::device(tokens.device()).dtype(at::kLong)));
}

at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& next_tokens) {
  return at::cross_entropy_loss(logits.flatten(0, 1), next_tokens.flatten());
}

}  // namespace paceline::models
