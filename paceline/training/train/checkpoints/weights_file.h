#pragma once

// Converts element types that the engine lacks to wider types that it has. Every value is exact.
//
// Thread safety: pure functions.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "paceline/training/models/layers.h"

namespace paceline {

// Converts a tensor of a type that the engine lacks. `foreign_type` is the type's name in a
// safetensors file: F8_E4M3 and F8_E5M2 become float32, U16 int32 and U32 int64. Returns nothing
// for other types, such as F4 and F8_E8M0, and when the bytes do not fit the shape.
std::optional<at::Tensor> widened(std::string_view foreign_type,
                                  const std::vector<std::int64_t>& shape,
                                  std::span<const std::byte> bytes);

// Finds the safetensors files that hold the weights of a path: the file itself, or the shards of an
// index in the form that Hugging Face writes,
//
//   {"metadata": {...}, "weight_map": {"wte.weight": "model-00001-of-00002.safetensors", ...}}
//
// Thread safety: pure functions.

struct WeightsShard {
  std::string path;
  // The tensors that the index lists for this file; nothing: there is no index.
  std::optional<std::set<std::string>> tensors;
};

// `path`: a file, an index (*.index.json), or a folder that has model.safetensors or
// model.safetensors.index.json. The index names each shard by a plain name of a file in its own
// folder. Error(kCorrupt) names the problem. The returned paths contain no links, because the
// caches of users consist of links.
std::vector<WeightsShard> find_weights_shards(const std::string& path);

// Tensors in one safetensors file, which Python and every other framework can read. Such a file
// passes a model's weights on; a training continues from a checkpoint (checkpointer.h).
//
//   write_weights("model.safetensors", weights_of(*model));
//   models::load_hugging_face(gpt, read_weights("gpt2"));  // a folder from Hugging Face
//
// Thread safety: pure functions.

// Copies the tensors into the module. Error(kInvalid) lists every difference in names, shapes and
// element types; then nothing has been copied.
void load_weights(torch::nn::Module& module, const TensorsByName& tensors);

// Replaces the file by one rename, so that a reader sees the whole old file or the whole new one.
// The tensors may have any device and memory order. Error(kSystem) when the operating system
// refuses, kUnsupported for an element type that the engine lacks.
void write_weights(const std::string& path, const TensorsByName& tensors);

struct ReadWeightsOptions {
  // Leaves out the tensors for whose name it returns true, whatever their element type.
  std::function<bool(const std::string& name)> skip = nullptr;
  // Converts float16 and bfloat16 to float32, and types that the engine lacks as widened(): F8_E4M3
  // and F8_E5M2 to float32, U16 to int32, U32 to int64. No value changes.
  bool widen = false;
};

// Reads all tensors, on the CPU and contiguous. `path`: as for find_weights_shards(). Links are
// followed. Error(kCorrupt) when a file is missing, is not a regular file or is not valid, and when
// the shards do not have exactly the tensors that the index lists. kUnsupported names a tensor
// whose element type the engine lacks.
TensorsByName read_weights(const std::string& path, const ReadWeightsOptions& options = {});

}  // namespace paceline
