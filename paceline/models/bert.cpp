#include "paceline/models/bert.h"

#include <limits>

#include <ATen/ATen.h>
#include <torch/types.h>

#include "paceline/core/check.h"

namespace paceline::models {
namespace {

constexpr double kNormEpsilon = 1e-12;

torch::nn::LayerNormOptions norm_of(std::int64_t width) {
  return torch::nn::LayerNormOptions({width}).eps(kNormEpsilon);
}

}  // namespace

BertImpl::BertImpl(const BertOptions& options, const Layers& layers)
    : options_(options), layers_(layers) {
  for (const auto size :
       {options.vocabulary, options.context, options.segments, options.layers, options.width})
    check(size > 0,
          "bert: vocabulary, context, segments, layers and width must be positive, not {}", size);
  BertImpl::reset();
}

TransformerBlockOptions BertImpl::block_options() const {
  return {.attention = {.width = options_.width,
                        .heads = options_.heads,
                        .is_causal = false,
                        .dropout = options_.dropout},
          .feed_forward = options_.feed_forward,
          .norm_first = false,
          .norm_epsilon = kNormEpsilon,
          .exact_gelu = true};
}

void BertImpl::reset() {
  const std::int64_t width = options_.width;
  words_ = layers_.embedding({options_.vocabulary, width});
  register_module("words", words_.ptr());
  positions_ = register_module("positions", torch::nn::Embedding(options_.context, width));
  segments_ = register_module("segments", torch::nn::Embedding(options_.segments, width));
  embedding_norm_ = layers_.layer_norm(norm_of(width));
  register_module("embedding_norm", embedding_norm_.ptr());
  blocks_ = register_module("blocks", torch::nn::ModuleList());
  for (std::int64_t layer = 0; layer < options_.layers; ++layer)
    blocks_->push_back(TransformerBlock(block_options(), layers_));
  head_ = layers_.linear({width, width});
  register_module("head", head_.ptr());
  head_norm_ = layers_.layer_norm(norm_of(width));
  register_module("head_norm", head_norm_.ptr());
  head_bias_ = register_parameter("head_bias", torch::zeros({options_.vocabulary}));
  init_transformer(*this, 1);
}

at::Tensor BertImpl::embed(const at::Tensor& tokens, const at::Tensor& segments) {
  const std::int64_t length = tokens.size(1);
  check(length <= options_.context, "bert: {} tokens are more than the context of {}", length,
        options_.context);
  const at::Tensor positions = at::arange(length, at::device(tokens.device()).dtype(at::kLong));
  const at::Tensor all = words_.forward<at::Tensor>(tokens) + positions_->forward(positions) +
                         segments_->forward(segments.defined() ? segments : at::zeros_like(tokens));
  return layers_.dropout(embedding_norm_.forward<at::Tensor>(layers_.spread_out(all)),
                         options_.dropout, is_training());
}

at::Tensor BertImpl::forward(const at::Tensor& tokens, const at::Tensor& segments,
                             const at::Tensor& is_token) {
  at::Tensor states = embed(tokens, segments);
  at::Tensor bias;
  if (is_token.defined()) {
    bias = at::zeros({tokens.size(0), 1, 1, tokens.size(1)}, states.options())
               .masked_fill(is_token.logical_not().unsqueeze(1).unsqueeze(1),
                            -std::numeric_limits<double>::infinity());
  }
  for (std::size_t layer = 0; layer < blocks_->size(); ++layer)
    states = blocks_->at<TransformerBlockImpl>(layer).forward(states, bias);
  const at::Tensor last =
      head_norm_.forward<at::Tensor>(at::gelu(head_.forward<at::Tensor>(states)));
  return layers_.logits(last, weight_of(words_), head_bias_);
}

}  // namespace paceline::models
