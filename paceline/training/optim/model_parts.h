#pragma once

// Of an optimizer's parameters: which are parts of larger ones, where a model is divided among
// ranks, so that norms are those of the whole model, each parameter counted once. A value.
//
//   optimizer.set_model_parts({.model = ..., .layers = mesh.group("tp"), .divided = {weight}, ...});
//
// train::model_parts() (training/train/model_parts.h) fills one in for a model whose layers say how
// they are divided.

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline::optim {

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
// (training/tensor/model_share.h): a norm over them is not the model's. The second: for parameters
// that are themselves parts of larger ones, whose own norms are not those of the whole.
void require_whole_model(const char* caller, const std::vector<at::Tensor>& parameters);
void require_whole_parameters(const char* caller, const std::vector<at::Tensor>& parameters);

}  // namespace paceline::optim
