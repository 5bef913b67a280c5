#pragma once

// Element types of other people's files as the engine's next wider ones: exactly, every value.
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

// A tensor of a type that the engine lacks, by its name in a safetensors file: F8_E4M3 and F8_E5M2
// become float32, U16 int32 and U32 int64. Nothing for other types, such as F4 and F8_E8M0, and
// where the bytes do not fit the shape.
std::optional<at::Tensor> widened(std::string_view foreign_type,
                                  const std::vector<std::int64_t>& shape,
                                  std::span<const std::byte> bytes);

// Which safetensors files hold the weights that a path names: the file itself, or the shards of an
// index as Hugging Face writes it,
//
//   {"metadata": {...}, "weight_map": {"wte.weight": "model-00001-of-00002.safetensors", ...}}
//
// Thread safety: pure functions.

struct WeightsShard {
  std::string path;
  // The tensors that the index promises of this file; nothing: there is no index.
  std::optional<std::set<std::string>> tensors;
};

// `path`: a file, an index (*.index.json), or a folder that has model.safetensors or
// model.safetensors.index.json. Error(kCorrupt) that names what is missing or wrong: a shard is a
// plain name, of a file beside the index. The paths of the shards have no links left: users' caches
// consist of links.
std::vector<WeightsShard> find_weights_shards(const std::string& path);

// Tensors in one safetensors file, which Python and every other framework read: a model's weights
// to hand on, as opposed to a checkpoint, from which a training goes on (checkpointer.h).
//
//   write_weights("model.safetensors", weights_of(*model));
//   models::load_hugging_face(gpt, read_weights("gpt2"));  // a folder as Hugging Face has it
//
// Thread safety: pure functions.

// Copies them into the module. Error(kInvalid) that lists every difference in names, shapes and
// element types; nothing has been loaded then.
void load_weights(torch::nn::Module& module, const TensorsByName& tensors);

// Replaces the file, in one moment: a reader has the old one or the new one, whole. Tensors of any
// device and memory order. Error(kSystem) when the operating system refuses, kUnsupported for an
// element type that the engine lacks.
void write_weights(const std::string& path, const TensorsByName& tensors);

struct ReadWeightsOptions {
  // Leaves out the tensors of these names, of whatever element type.
  std::function<bool(const std::string& name)> skip = nullptr;
  // Makes float16 and bfloat16 float32, and reads types that the engine lacks: F8_E4M3 and F8_E5M2
  // as float32, U16 as int32, U32 as int64. No value changes.
  bool widen = false;
};

// All tensors, on the CPU, contiguous. `path`: a file; an index (*.index.json), whose shards lie
// beside it; or a folder that has model.safetensors or model.safetensors.index.json. Links are
// followed. Error(kCorrupt) for a file that is missing, no regular file or not valid, and for
// shards that do not have exactly the tensors that the index lists; kUnsupported names a tensor
// whose element type the engine lacks.
TensorsByName read_weights(const std::string& path, const ReadWeightsOptions& options = {});

}  // namespace paceline
