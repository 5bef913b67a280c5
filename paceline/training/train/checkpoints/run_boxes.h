#pragma once

// The part of a training run that a rank holds, as boxes of whole tensors. The boxes hide how the
// run is divided: layers among ranks (models::DividedLayer); a model into stages whose parameters
// have the names of the whole model (models::GptStage); the optimizer's state and the parameters
// into shards (optim::Optimizer::shard()). So a checkpoint can be used with every division. Names
// of the tensors:
//
//   model.NAME                    parameters and buffers
//   optimizer.exp_avg.NAME        the optimizer's state of the parameter NAME, float32
//   optimizer.steps.NAME          two int64: the steps that NAME has taken, and its group
//   average.weight.NAME, average.num_updates
//
// Not collective. Thread safety: the functions use only their arguments; adopt() changes them.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "paceline/files/checkpoint/box_plan.h"
#include "paceline/training/device/device_memory.h"
#include "paceline/training/optim/optimizer.h"
#include "paceline/training/train/run_parts.h"
#include "paceline/training/train/training_state.h"

namespace paceline::train {

// The prefix of the names of a model's parameters and buffers.
inline constexpr std::string_view kModelTensors = "model.";

// The boxes, and the tensors that own their memory.
struct RunBoxes {
  std::vector<HeldMemory> boxes;
  std::vector<at::Tensor> tensors;
  DeviceSnapshot on_device;     // host copies, to which the boxes of tensors on a CUDA device refer
  at::Tensor steps;             // [parameter of the optimizer, 2]: all "optimizer.steps.NAME"
  optim::NamedTensors average;  // ExponentialMovingAverage::state()
};

// Selects the boxes that a rank loads or saves.
enum class RunShare {
  kLoad,      // everything that the rank needs, in the memory in which it belongs
  kFirst,     // the first replica saves everything; the buffers may differ between replicas
  kAlike,     // another replica, equal to the first, saves its share of all but the buffers
  kOwnState,  // another replica saves only the optimizer's state that no other rank has
};

// Returns boxes that refer to the memory of the module, of the optimizer, and of RunBoxes::steps
// and RunBoxes::average; for tensors on a CUDA device, to copies in pinned memory. The thread waits
// for these copies, for at most 5 minutes (Error(kTimeout)). `optimizer`, here and below: null if
// the run has none of Paceline's optimizers.
RunBoxes boxes_of_rank(const torch::nn::Module& module, const optim::Optimizer* optimizer,
                       const RunParts& parts, RunShare share);

// Error(kInvalid), which lists up to 8 parameters, if the group of a parameter is not the one in
// `steps`, which was filled from a checkpoint.
void require_same_groups(const at::Tensor& steps, const torch::nn::Module& module,
                         const optim::Optimizer* optimizer);
// Call adopt() after all boxes have been filled. It passes `steps` to the optimizer and `average`
// to parts.average, and copies RunBoxes::on_device back to the tensors on the CUDA device.
void adopt(const RunBoxes& boxes, optim::Optimizer* optimizer, const RunParts& parts);

// Returns the box of a whole tensor that only one rank has.
HeldMemory box_of(const std::string& name, const at::Tensor& tensor);
// Whether the name belongs to a row of RunBoxes::steps.
bool is_steps(const std::string& name);

}  // namespace paceline::train
