#pragma once

// Tensors in one safetensors file, which Python and every other framework read: a model's weights
// to hand on, as opposed to a checkpoint, from which a training goes on (checkpointer.h).
//
//   write_weights("model.safetensors", weights_of(*model));
//   models::load_hugging_face(gpt, read_weights("gpt2.safetensors"));
//
// Thread safety: pure functions.

#include <map>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

namespace paceline {

using TensorsByName = std::map<std::string, at::Tensor>;

// The module's parameters and buffers; not copies.
TensorsByName weights_of(const torch::nn::Module& module);

// Copies them into the module. Error(kInvalid) that lists every difference in names, shapes and
// element types; nothing has been loaded then.
void load_weights(torch::nn::Module& module, const TensorsByName& tensors);

// Replaces the file, in one moment: a reader has the old one or the new one, whole. Tensors of any
// device and memory order. Error(kSystem) when the operating system refuses, kUnsupported for an
// element type that the engine lacks.
void write_weights(const std::string& path, const TensorsByName& tensors);

// On the CPU, contiguous. Error(kCorrupt) for a file that is missing, no plain file or not valid,
// kUnsupported for an element type that the engine lacks.
TensorsByName read_weights(const std::string& path);

}  // namespace paceline
