#pragma once

// Which safetensors files hold the weights that a path names: the file itself, or the shards of an
// index as Hugging Face writes it,
//
//   {"metadata": {...}, "weight_map": {"wte.weight": "model-00001-of-00002.safetensors", ...}}
//
// Thread safety: pure functions.

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace paceline {

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

}  // namespace paceline
