#pragma once

// Some of GPT's blocks, for a pipeline: the first stage also has the embeddings, the last one the
// last norm and the logits. Parameters have the names that they have in the whole model, and the
// values of a whole model that is made from the same random numbers. The weight "wte.weight" is at
// both ends, in the first stage and in the last: pipeline/tied_weights.h keeps it the same.
//
//   models::GptStage stage(options, layers, models::gpt_stage_range(options, rank, ranks));
//
// The whole model exists for a moment while a stage is made. Blind to ranks. It cannot be cloned.

#include <cstdint>
#include <memory>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "paceline/models/gpt.h"

namespace paceline::models {

// Blocks [begin, end) of GptOptions::layers.
struct GptRange {
  std::int64_t begin = 0, end = 0;
};
// The blocks of a stage, as many as any other or one more. Error(kInvalid) when there are more
// stages than blocks.
GptRange gpt_stage_range(const GptOptions& options, int stage, int num_stages);

class GptStageImpl : public torch::nn::Module {
 public:
  // Error(kInvalid) for a range that is empty or not within the model's blocks.
  GptStageImpl(const GptOptions& options, const Layers& layers, GptRange range);

  // Of the first stage tokens [N, T], of others states; of the last stage logits, of others states.
  at::Tensor forward(const at::Tensor& input);

  bool is_first() const { return range_.begin == 0; }
  bool is_last() const { return range_.end == options_.layers; }
  // The weight of the embedding and the logits; nothing in stages at neither end, and in the only
  // stage of a model, which has it once.
  std::vector<at::Tensor> tied_weights() const;

 private:
  GptOptions options_;
  Layers layers_;
  GptRange range_;
  torch::nn::AnyModule wte_, ln_f_;
  torch::nn::Embedding wpe_{nullptr};
  std::vector<TransformerBlock> blocks_;
};
TORCH_MODULE(GptStage);

// A rank's stages as one module, whose parameters have their names in the whole model.
std::shared_ptr<torch::nn::Module> one_module(const std::vector<GptStage>& stages);

}  // namespace paceline::models
