#pragma once

// The tensors that a rank holds of a training run, as boxes of whole tensors, whatever the
// division: of layers among ranks (models::DividedLayer), of a model into stages whose parameters
// have the names of the whole (models::GptStage), of the optimizer's state and of the copy of the
// parameters (optim::Optimizer::shard()). So one checkpoint fits all divisions. Names:
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

// Boxes, and the tensors that hold them.
struct RunBoxes {
  std::vector<HeldMemory> boxes;
  std::vector<at::Tensor> tensors;
  at::Tensor steps;             // [parameters of the optimizer, 2]: "optimizer.steps"
  optim::NamedTensors average;  // ExponentialMovingAverage::state()
};

// `is_first_replica`: also returns buffers, which may differ between replicas. `has_replicas`: also
// returns tensors that are the same on all replicas. Error(kUnsupported) for tensors that are not
// on the CPU.
RunBoxes boxes_to_save(const torch::nn::Module& module, const optim::Optimizer& optimizer,
                       const RunParts& parts, bool is_first_replica, bool has_replicas);

// The boxes that a rank needs, placed in the memory of module, optimizer and average, and in
// `steps` and `average`.
RunBoxes boxes_to_load(const torch::nn::Module& module, const optim::Optimizer& optimizer,
                       const RunParts& parts);

// Throws Error(kInvalid) that lists the parameters which are in another group here than in the
// checkpoint that `steps` was filled from.
void require_same_groups(const at::Tensor& steps, const torch::nn::Module& module,
                         const optim::Optimizer& optimizer);
// Once all boxes have been filled: gives optimizer and average the values that are not in their
// memory.
void adopt(const RunBoxes& boxes, optim::Optimizer& optimizer, const RunParts& parts);

// Returns the box of a whole tensor that only this rank has.
HeldMemory box_of(const std::string& name, const at::Tensor& tensor);
// Whether the name belongs to RunBoxes::steps.
bool is_steps(const std::string& name);

}  // namespace paceline::train
