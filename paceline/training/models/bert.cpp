#include "paceline/training/models/bert.h"

#include <limits>

#include <ATen/ATen.h>
#include <torch/types.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/models/layer_functions.h"
#include "paceline/training/models/transformer.h"

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
  blocks_ = register_module(
      "blocks", std::make_shared<TransformerBlocksImpl>(block_options(), layers_, options_.layers));
  head_ = layers_.linear({width, width});
  register_module("head", head_.ptr());
  head_norm_ = layers_.layer_norm(norm_of(width));
  register_module("head_norm", head_norm_.ptr());
  head_bias_ = register_parameter("head_bias", torch::zeros({options_.vocabulary}));
  init_transformer(*this, 1);
}

std::vector<at::Tensor> BertImpl::embed(const std::vector<at::Tensor>& inputs) {
  const at::Tensor& tokens = inputs.at(0);
  const bool has_segments = inputs.size() > 1 && inputs[1].defined();
  const bool has_mask = inputs.size() > 2 && inputs[2].defined();
  const std::int64_t length = tokens.size(1);
  check(length <= options_.context, "bert: {} tokens are more than the context of {}", length,
        options_.context);
  const at::Tensor positions = at::arange(length, at::device(tokens.device()).dtype(at::kLong));
  const at::Tensor all = words_.forward<at::Tensor>(tokens) + positions_->forward(positions) +
                         segments_->forward(has_segments ? inputs[1] : at::zeros_like(tokens));
  std::vector<at::Tensor> states{
      layers_.dropout(embedding_norm_.forward<at::Tensor>(layers_.spread_out(all)),
                      options_.dropout, is_training())};
  if (has_mask) states.push_back(inputs[2]);
  return states;
}

at::Tensor BertImpl::run_blocks(const std::vector<at::Tensor>& states) {
  at::Tensor bias;
  if (states.size() > 1) {
    const at::Tensor is_padding = states[1].logical_not().unsqueeze(1).unsqueeze(1);
    bias = at::zeros(is_padding.sizes(), states[0].options())
               .masked_fill(is_padding, -std::numeric_limits<double>::infinity());
  }
  return blocks_->forward(states[0], bias);
}

at::Tensor BertImpl::logits_of(const at::Tensor& states) {
  const at::Tensor last =
      head_norm_.forward<at::Tensor>(at::gelu(head_.forward<at::Tensor>(states)));
  return layers_.logits(last, weight_of(words_), head_bias_);
}

at::Tensor BertImpl::forward(const at::Tensor& tokens, const at::Tensor& segments,
                             const at::Tensor& is_token) {
  return logits_of(run_blocks(embed({tokens, segments, is_token})));
}

at::Tensor BertImpl::tied_weight() const { return weight_of(words_); }

void BertImpl::share_tied_weight(const BertImpl& other) {
  words_ = other.words_;
  replace_module("words", words_.ptr());
}

void BertImpl::keep(BlockRange range) {
  const bool is_first = range.begin == 0, is_last = range.end == options_.layers;
  blocks_->keep(range);
  if (!is_first) {
    for (const char* name : {"positions", "segments", "embedding_norm"}) unregister_module(name);
    positions_ = segments_ = nullptr;
    embedding_norm_ = torch::nn::AnyModule();
  }
  if (!is_first && !is_last) {
    unregister_module("words");
    words_ = torch::nn::AnyModule();
  }
  if (!is_last) {
    for (const char* name : {"head", "head_norm"}) unregister_module(name);
    head_ = head_norm_ = torch::nn::AnyModule();
    parameters_.erase("head_bias");
    head_bias_.reset();
  }
}

}  // namespace paceline::models
