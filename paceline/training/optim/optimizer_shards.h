#pragma once

// Values that describe how a model, an optimizer's state or its gradients are divided among ranks.

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline::optim {

// How Optimizer::shard() divides a step.
struct ShardOptions {
  // Keeps one copy of the parameters for all ranks of a host. Error(kUnsupported) if these ranks
  // share no memory, or if hosts have different numbers of ranks.
  bool node_shared = false;
  // Names of parameters(), for the message about a write outside of a step; empty: their numbers.
  std::vector<std::string> names = {};
  // Above 0: gradients are divided too, in units of about this many bytes of parameters.
  std::size_t unit_bytes = 0;
  // Units chosen by the caller, such as a block's parameters; unit_bytes applies to all other
  // parameters.
  std::vector<std::vector<at::Tensor>> units = {};
  // With one copy and units, on several hosts: each host keeps only the parts of its ranks, and a
  // unit is whole on a host only while operations read it (divided_parameters.h).
  bool shard_across_hosts = false;
};

// Describes which parameters are parts of larger ones, if a model is divided among ranks. Norms are
// then those of the whole model, with each parameter counted once. A plain value.
//
//   optimizer.set_model_parts(
//       {.model = ..., .layers = mesh.group("tp"), .divided = {weight}, ...});
//
// train::model_parts() (training/train/training_step.h) makes this value for a model whose layers
// report how they are divided.
struct ModelParts {
  // All ranks that together have one copy of the model; null: this rank has all of it.
  std::shared_ptr<ProcessGroup> model;
  // The ranks among which single parameters are divided; null: no parameter is divided.
  std::shared_ptr<ProcessGroup> layers;
  // Parameters of which this rank has one part, and the other ranks of `layers` the other parts.
  // The list must be the same, in the optimizer's order, on all of these ranks.
  std::vector<at::Tensor> divided = {};
  // Parameters that other ranks of `model` have with the same values, and that are counted in norms
  // there.
  std::vector<at::Tensor> copies = {};
};

}  // namespace paceline::optim
