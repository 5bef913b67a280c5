#pragma once

// The GPT that the flags choose, as this rank has it, with its optimizer and with what makes its
// gradients: all layers or parts of them (whole_learner.cpp), or some of the layers
// (staged_learner.cpp).

#include <cstdint>
#include <memory>
#include <string>

#include <torch/nn/module.h>

#include "paceline/engine/collectives/group/device_mesh.h"
#include "paceline/training/models/gpt.h"
#include "paceline/training/models/layers.h"
#include "paceline/training/optim/optimizer.h"
#include "paceline/training/train/checkpoints/weights_file.h"
#include "paceline/training/train/loop.h"

#include "examples/train_gpt/options.h"

namespace train_gpt {

class Learner {
 public:
  virtual ~Learner() = default;

  virtual torch::nn::Module& module() = 0;
  virtual paceline::optim::Optimizer& optimizer() = 0;
  virtual std::shared_ptr<paceline::train::StepGradients> gradients() = 0;
  // Collective among the ranks that have one model, as all below: the mean loss of a batch, without
  // gradients.
  virtual at::Tensor test_loss(const paceline::data::Batch& batch) = 0;
  // The whole model's, under its own names (training/models/gpt.h).
  virtual paceline::TensorsByName weights() = 0;
  // The prompt [1, T] and at most `tokens` that follow; on the job's rank 0, elsewhere maybe
  // undefined.
  virtual at::Tensor generate(const at::Tensor& prompt, std::int64_t tokens,
                              std::uint64_t seed) = 0;
  // A line about how the model is divided; empty: there is nothing to tell.
  virtual std::string division() const { return {}; }
  // After the last step.
  virtual void finish() {}
};

// Collective over the mesh. Error(kInvalid) when the model does not divide among its ranks.
std::unique_ptr<Learner> make_learner(const Options& options, std::int64_t vocabulary,
                                      const paceline::DeviceMesh& mesh);
std::unique_ptr<Learner> make_whole_learner(const Options& options, std::int64_t vocabulary,
                                            const paceline::DeviceMesh& mesh);
std::unique_ptr<Learner> make_staged_learner(const Options& options, std::int64_t vocabulary,
                                             const paceline::DeviceMesh& mesh);

paceline::models::GptOptions gpt_options(const Options& options, std::int64_t vocabulary);
// Layers for the ranks along "tp", whose logits are their part of the vocabulary's.
paceline::models::Layers layers_for(const std::shared_ptr<paceline::ProcessGroup>& parts);
// Mean cross entropy of what the last layer returned with the tokens that come next.
at::Tensor loss_of(const std::shared_ptr<paceline::ProcessGroup>& parts, const at::Tensor& logits,
                   const at::Tensor& next_tokens);
// As Learner::generate(), with a model on one rank or on all of the parts.
at::Tensor sample_from(paceline::models::Gpt& gpt, const at::Tensor& prompt, std::int64_t tokens,
                       std::uint64_t seed);

}  // namespace train_gpt
