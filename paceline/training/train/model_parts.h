#pragma once

// The parts of a divided model that a rank has, for its optimizer.
//
// Thread safety: none.

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/optim/optimizer.h"

namespace paceline::train {

// Returns, for an optimizer, the parts of the model that this rank has, as the layers describe them
// (training/models/layers.h):
//
//   optimizer.set_model_parts(train::model_parts(
//       *stage, mesh.sub_mesh({"pp", "tp"}).world(), mesh.group("tp"), tied_copies));
//
// `model`: all ranks that together have one model. `layers`: the ranks that divide its layers,
// which may be this rank alone. Error(kInvalid) if `layers` is null.
// `tied`: parameters of `module` that another stage has too; norms count them in that stage.
optim::ModelParts model_parts(torch::nn::Module& module, std::shared_ptr<ProcessGroup> model,
                              std::shared_ptr<ProcessGroup> layers,
                              const std::vector<at::Tensor>& tied = {});

}  // namespace paceline::train
