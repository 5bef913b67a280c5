#pragma once

// A pipeline stage of GPT or BERT: some of the blocks, in the first stage also the embeddings, in
// the last one also the layers that compute logits. Parameters have the same names as in the whole
// model, and the same initial values for the same random numbers. GPT and BERT use the embedding's
// weight again for the logits, so the first and the last stage each have a copy:
// training/pipeline/stage_weights.h keeps the copies on two ranks equal; join_ends() replaces two
// copies on one rank by one tensor.
//
//   models::GptStage stage(options, layers,
//                          models::BlockRange::of_stage(options.layers, rank, num_ranks));
//
// The whole model exists briefly while a stage is constructed. A stage does not depend on other
// ranks and does not support clone().

#include <cstdint>
#include <memory>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "paceline/training/models/bert.h"
#include "paceline/training/models/divided_layer.h"
#include "paceline/training/models/gpt.h"

namespace paceline::models {

// A model (GptImpl, BertImpl) without the layers of the other stages.
template <class Model>
class StageImpl : public Model {
 public:
  using Tensors = std::vector<at::Tensor>;

  // Error(kInvalid) for a range that is empty or not within the model's blocks.
  StageImpl(const typename Model::Options& options, const Layers& layers, BlockRange range);

  // The first stage takes the inputs of the whole model's forward(), every other stage the results
  // of the previous one: states and, if the first stage was given one, BERT's `is_token`. The last
  // stage returns logits.
  Tensors forward(const Tensors& inputs);
  // For stages that take and return one tensor.
  at::Tensor forward(const at::Tensor& input) { return forward(Tensors{input}).front(); }

  bool is_first() const { return range_.begin == 0; }
  bool is_last() const { return range_.end == this->options().layers; }
  // The weight that embedding and logits share, if they may be on different ranks; empty in a stage
  // that is neither first nor last, in the only stage of a model, and after join().
  Tensors tied_weights() const;
  // Makes the last stage use the weight of this one. Requires: this is the first stage.
  void join(StageImpl& last);

 private:
  const BlockRange range_;
  bool is_joined_ = false;
};
extern template class StageImpl<GptImpl>;
extern template class StageImpl<BertImpl>;

TORCH_MODULE_IMPL(GptStage, StageImpl<GptImpl>);
TORCH_MODULE_IMPL(BertStage, StageImpl<BertImpl>);

inline namespace internal {

// Joins the first and the last stage of the model if this rank has both.
template <class Stage>
void join_ends(std::vector<Stage> stages) {
  for (Stage& first : stages) {
    for (Stage& last : stages) {
      if (first->is_first() && last->is_last() && first.ptr() != last.ptr()) first->join(*last);
    }
  }
}

}  // namespace internal

// Combines a rank's stages into one module, whose parameters have their names in the whole model.
std::shared_ptr<torch::nn::Module> one_module(
    const std::vector<std::shared_ptr<torch::nn::Module>>& stages);
template <class Stage>
std::shared_ptr<torch::nn::Module> one_module(const std::vector<Stage>& stages) {
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  for (const Stage& stage : stages) modules.push_back(stage.ptr());
  return one_module(modules);
}

}  // namespace paceline::models
