#pragma once

// This rank's part of the GPT that the flags choose, with an optimizer and the computation of the
// gradients. The part is all layers or a part of each layer (whole_learner.cpp), or some of the
// layers (staged_learner.cpp).

#include <cstdint>
#include <memory>
#include <string>

#include <torch/nn/module.h>

#include "paceline/engine/collectives/group/device_mesh.h"
#include "paceline/training/models/gpt.h"
#include "paceline/training/models/layers.h"
#include "paceline/training/optim/optimizer.h"
#include "paceline/training/train/checkpoints/weights_file.h"
#include "paceline/training/train/step_gradients.h"

#include "examples/train_gpt/options.h"

namespace train_gpt {

class Learner {
 public:
  virtual ~Learner() = default;

  virtual torch::nn::Module& module() = 0;
  virtual paceline::optim::Optimizer& optimizer() = 0;
  virtual std::shared_ptr<paceline::train::StepGradients> gradients() = 0;
  // Collective among the ranks that hold one model, like all functions below. Returns the mean loss
  // of a batch, without gradients.
  virtual at::Tensor test_loss(const paceline::data::Batch& batch) = 0;
  // The weights of the whole model, under the names of training/models/gpt.h.
  virtual paceline::StateDict weights() = 0;
  // Continues the prompt [1, T] by at most `tokens` tokens and returns both together. The result is
  // defined on rank 0 of the job; it may be undefined on other ranks.
  virtual at::Tensor generate(const at::Tensor& prompt, std::int64_t tokens,
                              std::uint64_t seed) = 0;
  // A line about how the model is divided, or an empty text if there is nothing to report.
  virtual std::string division() const { return {}; }
  // Call this after the last step.
  virtual void finish() {}
};

// Collective over the mesh. Throws Error(kInvalid) if the model cannot be divided among its ranks.
std::unique_ptr<Learner> make_learner(const Options& options, std::int64_t vocabulary,
                                      const paceline::DeviceMesh& mesh);
std::unique_ptr<Learner> make_whole_learner(const Options& options, std::int64_t vocabulary,
                                            const paceline::DeviceMesh& mesh);
std::unique_ptr<Learner> make_staged_learner(const Options& options, std::int64_t vocabulary,
                                             const paceline::DeviceMesh& mesh);

paceline::models::GptOptions gpt_options(const Options& options, std::int64_t vocabulary);
// Layers for the ranks along "tp". Each rank's logits cover its part of the vocabulary.
paceline::models::Layers layers_for(const std::shared_ptr<paceline::ProcessGroup>& parts);
// Mean cross entropy between the last layer's logits and the tokens that come next.
at::Tensor loss_of(const std::shared_ptr<paceline::ProcessGroup>& parts, const at::Tensor& logits,
                   const at::Tensor& next_tokens);
// Like Learner::generate(), for a model that this rank holds whole or shares with the ranks along
// "tp".
at::Tensor sample_from(paceline::models::Gpt& gpt, const at::Tensor& prompt, std::int64_t tokens,
                       std::uint64_t seed);

}  // namespace train_gpt
