#pragma once

// What a rank holds of a training run, as boxes of whole tensors, whatever the division: of layers
// among ranks (models::DividedLayer), of a model into stages whose parameters have the names of the
// whole (models::GptStage), of the optimizer's state and of the copy of the parameters
// (optim::Optimizer::shard()). So one checkpoint fits them all. Names:
//
//   model.NAME                    parameters and buffers
//   optimizer.exp_avg.NAME        the optimizer's state of the parameter NAME, float32
//   optimizer.steps.NAME          two int64: steps that it has taken; its group
//   average.weight.NAME, average.num_updates
//
// Local: nothing here is collective. Thread safety: pure functions.

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "paceline/files/checkpoint/checkpoint_team.h"
#include "paceline/training/optim/optimizer.h"
#include "paceline/training/train/training_state.h"

namespace paceline::train {

// The boxes, and the tensors in whose memory they are.
struct RunBoxes {
  std::vector<HeldMemory> boxes;
  std::vector<at::Tensor> tensors;
  at::Tensor steps;             // [parameters of the optimizer, 2]: of "optimizer.steps"
  optim::NamedTensors average;  // ExponentialMovingAverage::state()
};

// Which boxes a rank needs, or saves of what it has.
enum class RunShare {
  kLoad,      // everything that the rank needs, in the place where it belongs
  kFirst,     // the first replica saves everything, with the buffers, which may differ by replica
  kAlike,     // another replica helps to save what all replicas have alike
  kOwnState,  // another replica saves only the optimizer's state that no other rank has
};

// The boxes lie in the memory of module, optimizer and average, and in `steps` and `average`.
// Error(kUnsupported) for tensors that are not on the CPU.
RunBoxes boxes_of_rank(const torch::nn::Module& module, const optim::Optimizer& optimizer,
                       const RunParts& parts, RunShare share);

// Error(kInvalid) that lists parameters which are in another group here than in the checkpoint that
// `steps` was filled from.
void require_same_groups(const at::Tensor& steps, const torch::nn::Module& module,
                         const optim::Optimizer& optimizer);
// Once all boxes have been filled: gives optimizer and average what is not in their memory.
void adopt(const RunBoxes& boxes, optim::Optimizer& optimizer, const RunParts& parts);

// All of a tensor that is one rank's.
HeldMemory box_of(const std::string& name, const at::Tensor& tensor);
// Whether it is of RunBoxes::steps.
bool is_steps(const std::string& name);

}  // namespace paceline::train
