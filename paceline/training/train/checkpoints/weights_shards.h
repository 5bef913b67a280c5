#pragma once

// Weights that are divided among several files, and their types.
//
// Thread safety: the functions may be called from any thread.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

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

}  // namespace paceline
