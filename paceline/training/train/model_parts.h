#pragma once

// The parts of a divided model that a rank has, for its optimizer.
//
// Thread safety: none.

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/optim/optimizer_shards.h"

namespace paceline::train {

// The groups of optim::ModelParts.
struct ModelGroups {
  std::shared_ptr<ProcessGroup> model;   // all ranks that together have one model
  std::shared_ptr<ProcessGroup> layers;  // the ranks that divide its layers
};

// Returns, for an optimizer, the parts of the model that this rank has, as the layers describe them
// (training/models/layers.h):
//
//   const train::ModelGroups groups{.model = mesh.sub_mesh({"pp", "tp"}).world(),
//                                   .layers = mesh.group("tp")};
//   optimizer.set_model_parts(train::model_parts(*stage, groups, tied_copies));
//
// `tied`: parameters of `module` that are also on a rank of another stage, where norms count them.
optim::ModelParts model_parts(torch::nn::Module& module, const ModelGroups& groups,
                              const std::vector<at::Tensor>& tied = {});

}  // namespace paceline::train
