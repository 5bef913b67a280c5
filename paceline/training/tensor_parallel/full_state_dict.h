#pragma once

// Gathers and loads the whole weights of a model whose layers hold parts (models::DividedLayer),
// under the names and in the shapes of the dense model, so that divided and dense models can use
// the same weights file.
//
//   write_weights("gpt.safetensors", full_state_dict(*model, mesh.group("tp")));
//   load_full_state_dict(*model, read_weights("gpt.safetensors"));
//
// To load Hugging Face weights, load them into a dense model first, and from there with
// load_full_state_dict(*model, weights_of(*dense)).
//
// Thread safety: same as a torch::nn::Module and ProcessGroup.

#include <functional>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/models/layers.h"

namespace paceline {

// Returns the tensor to gather for a parameter, with the same shape.
using OfParameter = std::function<at::Tensor(const at::Tensor& parameter)>;

// Collective. Returns the whole parameters and buffers: if the ranks share memory, in one copy for
// all of them, into which each rank writes its parts; otherwise each rank gets its own copy. The
// shared copy must only be read: a write to the shared copy prints the name of the weight and ends
// the process (docs/sharding.md). `of` returns another tensor for each parameter, such as its
// gradient; then buffers are left out, and so are parameters for which it returns an undefined
// tensor on all ranks. Error(kInvalid) when the model is not divided among exactly the ranks of
// `group`; kSystem when the host does not have enough memory.
StateDict full_state_dict(torch::nn::Module& module, GroupRef group, const OfParameter& of = {});

// Not collective. Copies this rank's part of each tensor into the module. Error(kInvalid) if names
// or whole shapes differ; the message lists up to 8 differences, and no weight has been loaded.
void load_full_state_dict(torch::nn::Module& module, const StateDict& tensors);

}  // namespace paceline
