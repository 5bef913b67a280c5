#pragma once

// The safetensors format: tensors in one file that every framework can read and that can hold
// nothing executable.
//
//   u64 little-endian: length of the header | header: JSON, padded with spaces to 8 | the tensors'
//   bytes, no gap, no overlap
//
// Everything is validated before it is used: a header of at most 16 MiB (which also bounds the
// number of tensors), ranges inside the file, shapes whose product does not overflow, names that
// are unique. https://github.com/huggingface/safetensors
//
// Thread safety: pure functions.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "paceline/checkpoint/snapshot.h"

namespace paceline {

inline constexpr std::uint64_t kSafetensorsHeaderLimit = std::uint64_t{16} << 20;

// How tensors lie in a file: wide elements first, then by name, so that each tensor is aligned to
// its element.
struct SafetensorsLayout {
  std::string head;                // the length and the header: the first bytes of the file
  std::vector<std::size_t> order;  // the tensors' bytes follow in this order of the given indices
};

// Error(kInvalid) naming the tensor when its bytes do not match its shape, its name is taken, empty
// or not UTF-8, or the header would be too long.
SafetensorsLayout plan_safetensors(std::span<const NamedTensor> tensors,
                                   const std::map<std::string, std::string>& metadata);

struct Safetensors {
  std::vector<NamedTensor> tensors;  // in file order, pointing into the parsed bytes
  std::map<std::string, std::string> metadata;
};

// Error(kCorrupt) as `where: …` for whatever is not a valid file, Error(kUnsupported) for an
// element type without a Dtype.
Safetensors parse_safetensors(std::span<const std::byte> file, const std::string& where);

}  // namespace paceline
