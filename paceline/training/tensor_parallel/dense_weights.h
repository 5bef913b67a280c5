#pragma once

// The weights of the whole model, of a model whose layers hold parts (models::DividedLayer): under
// the names and in the shapes of the dense model, so that files of weights fit both.
//
//   write_weights("gpt.safetensors", gather_dense(*model, *mesh.group("tp")));
//   load_dense(*model, read_weights("gpt.safetensors"));
//
// Weights of Hugging Face's are loaded into a dense model first: load_dense(*model,
// weights_of(*dense)).
//
// Thread safety: that of a module and of ProcessGroup.

#include <functional>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

using TensorsByName = std::map<std::string, at::Tensor>;

// What is gathered of a parameter: a tensor of its shape.
using OfParameter = std::function<at::Tensor(const at::Tensor& parameter)>;

// Collective. The whole parameters and buffers, in one copy for all ranks where they share memory,
// else in a copy for each. Into the one copy each rank writes its parts in place. It must only be
// read: what writes to it ends the process with a line that names the weight
// (engine/collectives/memory/one_copy.h). `of`: another tensor for each parameter, such as its
// gradient (buffers are left out then); where it returns an undefined one on all ranks, the
// parameter is left out. Error(kInvalid) when the model is divided among other ranks than the
// group's, kSystem when the host lacks the memory.
TensorsByName gather_dense(torch::nn::Module& module, ProcessGroup& group,
                           const OfParameter& of = {});

// Local. Copies this rank's part of each into the module. Error(kInvalid) that lists every
// difference in names and whole shapes; nothing has been loaded then.
void load_dense(torch::nn::Module& module, const TensorsByName& tensors);

}  // namespace paceline
