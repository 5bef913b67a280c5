#pragma once

// What an optimizer is told, and tells, where a model, its state or its gradients are divided among
// ranks. Values.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline::optim {

// How Optimizer::shard() divides a step.
struct ShardOptions {
  // One copy of the parameters for the ranks of each host. Error(kUnsupported) where these share no
  // memory, and where hosts have different numbers of ranks.
  bool one_copy = false;
  // Names of parameters(), for the line about a write outside of a step; empty: their numbers.
  std::vector<std::string> names = {};
  // Above 0: gradients are divided too, in units of about so many bytes of parameters.
  std::size_t unit_bytes = 0;
  // Units of the caller's choice, such as a block's parameters; unit_bytes is for the others.
  std::vector<std::vector<at::Tensor>> units = {};
  // With one copy and units, on several hosts: each host keeps the parts of its ranks alone, and
  // has a unit whole while operations read it (divided_parameters.h).
  bool divide_hosts = false;
};

// Parameters whose gradients are reduced together, each rank's part to that rank.
struct GradientUnit {
  std::vector<std::size_t> parameters;  // their numbers, in the order of `layout`
  FlatLayout layout;                    // with a part for each rank
  std::size_t number = 0;               // of the optimizer's
};

// What one rank keeps of a tensor of Optimizer::state(): a run of its elements, in the order of its
// memory.
struct StatePart {
  std::string name;
  at::Tensor like;         // the parameter that the whole has the shape and the strides of
  at::Tensor elements;     // one float32 row, the optimizer's own memory; may be empty
  std::int64_t first = 0;  // where they begin in the whole
};

// Which parameters are parts of larger ones, where a model is divided among ranks, so that norms
// are those of the whole model, each parameter counted once. A value.
//
//   optimizer.set_model_parts({.model = ..., .layers = mesh.group("tp"), .divided = {weight}, ...});
//
// train::model_parts() (training/train/training_step.h) fills one in for a model whose layers say
// how they are divided.
struct ModelParts {
  // All ranks that together have one model; null: this one has all of it.
  std::shared_ptr<ProcessGroup> model;
  // The ranks among which single parameters are divided; null: none are.
  std::shared_ptr<ProcessGroup> layers;
  // Parameters of which this rank has a part, and the other ranks of `layers` the rest. The same
  // ones, in the optimizer's order, on all of these ranks.
  std::vector<at::Tensor> divided = {};
  // Parameters of which other ranks of `model` have the same values, and count them.
  std::vector<at::Tensor> copies = {};
};

// Error(kInvalid), naming `caller`, for parameters that are known to be one rank's share of a model
// (training/tensor/tensor_marks.h): a norm over them is not the model's. The second: for parameters
// that are themselves parts of larger ones, whose own norms are not those of the whole.
void require_whole_model(const char* caller, const std::vector<at::Tensor>& parameters);
void require_whole_parameters(const char* caller, const std::vector<at::Tensor>& parameters);

}  // namespace paceline::optim
