#include "paceline/training/models/transformer_stage.h"

#include <algorithm>
#include <string>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/models/transformer.h"

namespace paceline::models {

BlockRange BlockRange::of_stage(std::int64_t num_blocks, int stage, int num_stages) {
  check(num_stages > 0 && num_stages <= num_blocks && stage >= 0 && stage < num_stages,
        "stage {} of {} stages does not exist: {} blocks can be divided into 1 to {} stages", stage,
        num_stages, num_blocks, num_blocks);
  const std::int64_t each = num_blocks / num_stages;
  const std::int64_t longer = num_blocks % num_stages;
  const auto begin_of = [&](std::int64_t i) { return each * i + std::min(i, longer); };
  return {begin_of(stage), begin_of(stage + 1)};
}

template <class Model>
StageImpl<Model>::StageImpl(const typename Model::Options& options, const Layers& layers,
                            BlockRange range)
    : Model(options, layers), range_(range) {
  check(range.begin >= 0 && range.begin < range.end && range.end <= options.layers,
        "blocks {} to {} are not a stage of {} blocks", range.begin, range.end, options.layers);
  this->keep(range);
}

template <class Model>
std::vector<at::Tensor> StageImpl<Model>::forward(const Tensors& inputs) {
  Tensors tensors = is_first() ? this->embed(inputs) : inputs;
  tensors.at(0) = this->run_blocks(tensors);
  if (!is_last()) return tensors;
  return {this->logits_of(tensors[0])};
}

template <class Model>
std::vector<at::Tensor> StageImpl<Model>::tied_weights() const {
  if (is_first() == is_last() || is_joined_) return {};
  return {this->tied_weight()};
}

template <class Model>
void StageImpl<Model>::join(StageImpl& last) {
  check(is_first() && last.is_last(),
        "join() must be called on the model's first stage, with its last stage as the argument");
  last.share_tied_weight(*this);
  is_joined_ = last.is_joined_ = true;
}

template class StageImpl<GptImpl>;
template class StageImpl<BertImpl>;

std::shared_ptr<torch::nn::Module> one_module(
    const std::vector<std::shared_ptr<torch::nn::Module>>& stages) {
  const auto all = std::make_shared<torch::nn::Module>();
  const auto blocks = std::make_shared<torch::nn::Module>();
  std::string name_of_blocks;
  for (const auto& stage : stages) {
    for (const auto& parameter : stage->named_parameters(/*recurse=*/false))
      all->register_parameter(parameter.key(), parameter.value());
    for (const auto& child : stage->named_children()) {
      if (all->named_children().contains(child.key())) continue;  // the joined weight
      if (child.value()->as<TransformerBlocksImpl>() == nullptr) {
        all->register_module(child.key(), child.value());
        continue;
      }
      name_of_blocks = child.key();
      for (const auto& block : child.value()->named_children())
        blocks->register_module(block.key(), block.value());
    }
  }
  all->register_module(name_of_blocks, blocks);
  return all;
}

}  // namespace paceline::models
