#pragma once

// What a checkpoint holds, as a value: named tensors and a few words about them. The bytes are
// borrowed: the maker of a Snapshot keeps the memory alive and unchanged until save() returns, and
// a loaded Snapshot points into its LoadedCheckpoint.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "paceline/engine/core/dtype.h"

namespace paceline {

struct NamedTensor {
  std::string name;
  Dtype dtype = Dtype::kFloat32;
  std::vector<std::int64_t> shape;  // empty: a scalar
  std::span<const std::byte>
      bytes;  // row-major, little-endian; after a load maybe not aligned to the element
};

struct Snapshot {
  std::vector<NamedTensor> tensors;
  std::map<std::string, std::string> metadata;
  int world_size = 1;  // of the job that took it
  std::string run;     // to which it belongs (run_mark.h); empty: not known
};

}  // namespace paceline
