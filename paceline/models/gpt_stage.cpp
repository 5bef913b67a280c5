#include "paceline/models/gpt_stage.h"

#include <algorithm>
#include <string>

#include <ATen/ATen.h>

#include "paceline/core/check.h"

namespace paceline::models {

GptRange gpt_stage_range(const GptOptions& options, int stage, int num_stages) {
  check(num_stages > 0 && num_stages <= options.layers && stage >= 0 && stage < num_stages,
        "gpt: stage {} of {} stages; {} blocks are for 1 to {} stages", stage, num_stages,
        options.layers, options.layers);
  const std::int64_t each = options.layers / num_stages;
  const std::int64_t longer = options.layers % num_stages;
  const auto begin_of = [&](std::int64_t i) { return each * i + std::min(i, longer); };
  return {begin_of(stage), begin_of(stage + 1)};
}

GptStageImpl::GptStageImpl(const GptOptions& options, const Layers& layers, GptRange range)
    : options_(options), layers_(layers), range_(range) {
  check(range.begin >= 0 && range.begin < range.end && range.end <= options.layers,
        "gpt: blocks {} to {} are no stage of {} blocks", range.begin, range.end, options.layers);
  const GptImpl whole(options, layers);
  if (is_first() || is_last()) {
    wte_ = whole.wte_;
    register_module("wte", wte_.ptr());
  }
  if (is_first() && !whole.wpe_.is_empty()) wpe_ = register_module("wpe", whole.wpe_);
  const auto numbered = register_module("h", std::make_shared<torch::nn::Module>());
  for (std::int64_t layer = range.begin; layer < range.end; ++layer) {
    const auto block = whole.h_->ptr<TransformerBlockImpl>(static_cast<std::size_t>(layer));
    blocks_.emplace_back(numbered->register_module(std::to_string(layer), block));
  }
  if (is_last()) {
    ln_f_ = whole.ln_f_;
    register_module("ln_f", ln_f_.ptr());
  }
}

at::Tensor GptStageImpl::forward(const at::Tensor& input) {
  at::Tensor states = input;
  if (is_first()) {
    states = layers_.spread_out(embed_tokens(input, 0, options_.context, wte_, wpe_));
    states = layers_.dropout(states, options_.dropout, is_training());
  }
  for (TransformerBlock& block : blocks_) states = block->forward(states);
  if (!is_last()) return states;
  return layers_.logits(ln_f_.forward<at::Tensor>(states), weight_of(wte_), {});
}

std::vector<at::Tensor> GptStageImpl::tied_weights() const {
  if (is_first() == is_last()) return {};
  return {weight_of(wte_)};
}

std::shared_ptr<torch::nn::Module> one_module(const std::vector<GptStage>& stages) {
  const auto all = std::make_shared<torch::nn::Module>();
  const auto blocks = std::make_shared<torch::nn::Module>();
  for (const GptStage& stage : stages) {
    for (const auto& child : stage->named_children()) {
      if (child.key() != "h") {
        all->register_module(child.key(), child.value());
        continue;
      }
      for (const auto& block : child.value()->named_children())
        blocks->register_module(block.key(), block.value());
    }
  }
  all->register_module("h", blocks);
  return all;
}

}  // namespace paceline::models
