#pragma once

// Describes to an optimizer how a model is divided among ranks.

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline::optim {

// Describes which parameters are parts of larger ones, if a model is divided among ranks. Norms are
// then those of the whole model, with each parameter counted once. A plain value.
//
//   optimizer.set_model_parts(
//       {.model = ..., .layers = mesh.group("tp"), .divided = {weight}, ...});
//
// train::TrainingRun makes this value for a model whose layers
// report how they are divided.
struct ModelParts {
  // All ranks that together have one copy of the model; null: this rank has all of it.
  std::shared_ptr<ProcessGroup> model;
  // The ranks among which single parameters are divided; null: no parameter is divided.
  std::shared_ptr<ProcessGroup> layers;
  // Parameters that are divided among the ranks of `layers`: this rank has one part of each.
  // The list must be the same, in the optimizer's order, on all of these ranks.
  std::vector<at::Tensor> divided = {};
  // Parameters that other ranks of `model` have with the same values, and that are counted in norms
  // there.
  std::vector<at::Tensor> copies = {};
};

}  // namespace paceline::optim
