#pragma once

// Weights in safetensors files: a model's weights to hand on, as opposed to a checkpoint, from
// which training continues (checkpointer.h). Python and every other framework read these files.
//
//   write_weights("model.safetensors", weights_of(*model));
//   models::load_hugging_face(gpt, read_weights("gpt2"));  // a folder as Hugging Face has it
//
// Thread safety: the functions keep no state.

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

// Converts a tensor of a type that the engine lacks, by its name in a safetensors file, to the next
// wider type, without changing a value: F8_E4M3 and F8_E5M2 become float32, U16 int32 and U32
// int64. Returns nothing for other types, such as F4 and F8_E8M0, and if the bytes do not fit the
// shape.
std::optional<at::Tensor> widened(std::string_view foreign_type,
                                  const std::vector<std::int64_t>& shape,
                                  std::span<const std::byte> bytes);

// One of the safetensors files that hold the weights of a path: the file itself, or a shard of an
// index as Hugging Face writes it,
//
//   {"metadata": {...}, "weight_map": {"wte.weight": "model-00001-of-00002.safetensors", ...}}

struct WeightsShard {
  std::string path;
  // The tensors that the index lists for this file; nothing: there is no index.
  std::optional<std::set<std::string>> tensors;
};

// `path`: a file, an index (*.index.json), or a folder that has model.safetensors or
// model.safetensors.index.json. Error(kCorrupt) that names what is missing or wrong: a shard must
// be the plain name of a file beside the index. The returned paths contain no links, because users'
// caches consist of links.
std::vector<WeightsShard> find_weights_shards(const std::string& path);

// Copies the tensors into the module. Error(kInvalid) that lists every difference in names, shapes
// and element types; nothing has been loaded then.
// element types; nothing has been loaded then.
void load_weights(torch::nn::Module& module, const TensorsByName& tensors);

// Writes a safetensors file, which it replaces atomically: a reader has the whole old file or the
// whole new one. Tensors may be on any device and have any memory order. Error(kSystem) when the
// operating system refuses, kUnsupported for an element type that the engine lacks.
void write_weights(const std::string& path, const TensorsByName& tensors);

struct ReadWeightsOptions {
  // Leaves out the tensors of these names, of whatever element type.
  std::function<bool(const std::string& name)> skip = nullptr;
  // Converts float16 and bfloat16 to float32, and reads types that the engine lacks: F8_E4M3 and
  // F8_E5M2 as float32, U16 as int32, U32 as int64. No value changes.
  bool widen = false;
};

// Reads all tensors, contiguous and on the CPU. `path`: a file; an index (*.index.json), whose
// shards lie beside it; or a folder that has model.safetensors or model.safetensors.index.json.
// Links are followed. Error(kCorrupt) for a file that is missing, not a regular file or not valid,
// and for shards that do not have exactly the tensors that the index lists; kUnsupported, naming
// the tensor, for an element type that the engine lacks.
TensorsByName read_weights(const std::string& path, const ReadWeightsOptions& options = {});

}  // namespace paceline
