#pragma once

// Which parts of a model a rank has, as its layers say it (training/models/division.h), for its
// optimizer.
//
//   optimizer.set_model_parts(train::model_parts(*stage, {.model = mesh.sub_mesh({"pp", "tp"}).world(),
//                                                         .layers = mesh.group("tp")}, tied_copies));

#include <memory>
#include <vector>

#include <torch/nn/module.h>

#include "paceline/training/optim/model_parts.h"

namespace paceline::train {

// The groups of optim::ModelParts.
struct ModelGroups {
  std::shared_ptr<ProcessGroup> model;   // all ranks that together have one model
  std::shared_ptr<ProcessGroup> layers;  // those that divide its layers
};

// `tied`: parameters of `module` that a rank of another stage has too, and counts.
optim::ModelParts model_parts(torch::nn::Module& module, const ModelGroups& groups,
                              const std::vector<at::Tensor>& tied = {});

}  // namespace paceline::train
