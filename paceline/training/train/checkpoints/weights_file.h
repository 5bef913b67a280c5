#pragma once

// Weights files: reads and writes safetensors files. Element types that the engine does not support
// can be converted to wider types, without changing any value.
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

// Converts a tensor of a type that the engine does not support. `foreign_type` is the type's name
// in a safetensors file: F8_E4M3 and F8_E5M2 become float32, U16 int32 and U32 int64. Returns
// nullopt for other types, such as F4 and F8_E8M0, and when the number of bytes does not match the
// shape.
std::optional<at::Tensor> widened(std::string_view foreign_type,
                                  const std::vector<std::int64_t>& shape,
                                  std::span<const std::byte> bytes);

// Finds the safetensors files with the weights of a path: the file itself, or the shards of an
// index in Hugging Face's format:
//
//   {"metadata": {...}, "weight_map": {"wte.weight": "model-00001-of-00002.safetensors", ...}}
//
// Thread safety: pure functions.

struct WeightsShard {
  std::string path;
  // The tensors that the index lists for this file; nullopt: there is no index.
  std::optional<std::set<std::string>> tensors;
};

// `path`: a file, an index (*.index.json), or a folder that contains model.safetensors or
// model.safetensors.index.json. The index names each shard by the plain name of a file in the
// index's own folder. Error(kCorrupt), which names the problem. Symbolic links are resolved in the
// returned paths, because the caches of users consist of links.
std::vector<WeightsShard> find_weights_shards(const std::string& path);

// Tensors in one safetensors file, which Python and every other framework can read. Use such a file
// to pass on a model's weights; to continue a training run, use a checkpoint (checkpointer.h).
//
//   write_weights("model.safetensors", weights_of(*model));
//   models::load_hugging_face(gpt, read_weights("gpt2"));  // a folder from Hugging Face
//
// Thread safety: pure functions.

// Copies the tensors into the module. Error(kInvalid), which lists every difference in names,
// shapes and element types; in that case no tensor has been copied.
void load_weights(torch::nn::Module& module, const StateDict& tensors);

// Replaces the file with a single rename, so that a reader sees either the whole old file or the
// whole new one. The tensors may have any device and memory order. Error(kSystem) if a system call
// fails, kUnsupported for an element type that the engine does not support.
void write_weights(const std::string& path, const StateDict& tensors);

struct ReadWeightsOptions {
  // Leaves out the tensors for whose names it returns true, whatever their element type.
  std::function<bool(const std::string& name)> skip = nullptr;
  // Converts float16 and bfloat16 to float32, and types that the engine does not support as
  // widened() does: F8_E4M3 and F8_E5M2 to float32, U16 to int32, U32 to int64. No value changes.
  bool widen = false;
};

// Reads all tensors, on the CPU and contiguous. `path`: as for find_weights_shards(). Links are
// followed. Error(kCorrupt) when a file is missing, is not a regular file or is not valid, and when
// the shards do not contain exactly the tensors that the index lists; kUnsupported, which names the
// tensor, for an element type that the engine does not support.
StateDict read_weights(const std::string& path, const ReadWeightsOptions& options = {});

}  // namespace paceline
