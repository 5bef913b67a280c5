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
  wte_ = register_module("wte", torch::nn::Embedding(options_.vocabulary, options_.width));
  if (options_.rotary_base == 0)
    wpe_ = register_module("wpe", torch::nn::Embedding(options_.context, options_.width));
  h_ = register_module("h", torch::nn::ModuleList());
  for (std::int64_t layer = 0; layer < options_.layers; ++layer)
    h_->push_back(TransformerBlock(block_options(), layers_));
  ln_f_ =
      register_module("ln_f", torch::nn::LayerNorm(torch::nn::LayerNormOptions({options_.width})));
  init_transformer(*this, 2 * options_.layers);
}

at::Tensor GptImpl::forward(const at::Tensor& tokens, GptPast* past) {
  const std::int64_t before = past == nullptr ? 0 : past->count;
  const std::int64_t length = tokens.size(1);
  check(before + length <= options_.context, "gpt: {} tokens are more than the context of {}",
        before + length, options_.context);
  at::Tensor states = wte_->forward(tokens);
  if (!wpe_.is_empty()) {
    const at::Tensor positions =
        at::arange(before, before + length, at::device(tokens.device()).dtype(at::kLong));
    states = states + wpe_->forward(positions);
  }
  states = layers_.dropout(states, options_.dropout, is_training());
  for (std::size_t layer = 0; layer < h_->size(); ++layer) {
    states = h_->at<TransformerBlockImpl>(layer).forward(
        states, {}, past == nullptr ? nullptr : &past->layers[layer]);
  }
  if (past != nullptr) past->count += length;
  return at::linear(ln_f_->forward(states), wte_->weight);
}

GptPast GptImpl::make_past(std::int64_t sequences, std::int64_t tokens) const {
  GptPast past;
  for (std::size_t layer = 0; layer < h_->size(); ++layer) {
    past.layers.push_back(h_->at<TransformerBlockImpl>(layer).make_past(sequences, tokens));
  }
  return past;
}

at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& next_tokens) {
  return at::cross_entropy_loss(logits.flatten(0, 1), next_tokens.flatten());
}

}  // namespace paceline::models
