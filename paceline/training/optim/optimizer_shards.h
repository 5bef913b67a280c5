#pragma once

// Values that describe how a model, an optimizer's state or its gradients are divided among ranks.

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
  // Keeps one copy of the parameters for the ranks of each host. Error(kUnsupported) if these ranks
  // share no memory, or if hosts have different numbers of ranks.
  bool one_copy = false;
  // Names of parameters(), for the line about a write outside of a step; empty: their numbers.
  std::vector<std::string> names = {};
  // Above 0: gradients are divided too, in units of about this many bytes of parameters.
  std::size_t unit_bytes = 0;
  // Units chosen by the caller, such as a block's parameters; unit_bytes applies to all others.
  std::vector<std::vector<at::Tensor>> units = {};
  // With one copy and units, on several hosts: each host keeps only the parts of its ranks, and has
  // a unit whole while operations read it (divided_parameters.h).
  bool divide_hosts = false;
};

// Parameters whose gradients are reduced together; each rank gets its part.
struct GradientUnit {
  std::vector<std::size_t> parameters;  // their numbers, in the order of `layout`
  FlatLayout layout;                    // with a part for each rank
  std::size_t number = 0;               // the optimizer's number for it
};

// The part of a tensor of Optimizer::state() that one rank keeps: a run of its elements, in the
// order of its memory.
struct StatePart {
  std::string name;
  at::Tensor like;         // a parameter with the shape and the strides of the whole tensor
  at::Tensor elements;     // one float32 row, the optimizer's own memory; may be empty
  std::int64_t first = 0;  // where the elements begin in the whole tensor
};

// Which parameters are parts of larger ones, if a model is divided among ranks. Norms are then
// those of the whole model, with each parameter counted once. A value.
//
//   optimizer.set_model_parts(
//       {.model = ..., .layers = mesh.group("tp"), .divided = {weight}, ...});
//
// train::model_parts() (training/train/training_step.h) makes one for a model whose layers say how
// they are divided.
struct ModelParts {
  // All ranks that together have one model; null: this rank has all of it.
  std::shared_ptr<ProcessGroup> model;
  // The ranks among which single parameters are divided; null: no parameter is.
  std::shared_ptr<ProcessGroup> layers;
  // Parameters of which this rank has one part, and the other ranks of `layers` the rest. They must
  // be the same, in the optimizer's order, on all of these ranks.
  std::vector<at::Tensor> divided = {};
  // Parameters of which other ranks of `model` have the same values, and count them in norms.
  std::vector<at::Tensor> copies = {};
};

// Throws Error(kInvalid), naming `caller`, for parameters that are known to be one rank's share of
// a model (training/tensor/tensor_marks.h), because a norm over them is not the model's.
// require_whole_parameters() does so only for parameters that are themselves parts of larger ones,
// because their norms are not those of the whole parameters.
void require_whole_model(const char* caller, const std::vector<at::Tensor>& parameters);
void require_whole_parameters(const char* caller, const std::vector<at::Tensor>& parameters);

}  // namespace paceline::optim
