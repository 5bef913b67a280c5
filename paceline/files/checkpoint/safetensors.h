#pragma once

// The safetensors format: tensors in a file that every framework can read and that cannot contain
// executable code.
//
//   length of the header: u64, little-endian | header: JSON, spaces up to a multiple of 8 |
//   bytes of the tensors, without gaps or overlaps
//
// Everything is validated before it is used: the header has at most 16 MiB (which also limits the
// number of tensors), ranges lie inside the file, the product of a shape does not overflow, names
// are unique. https://github.com/huggingface/safetensors
//
// Thread safety: pure functions; SafetensorsFile::read() from any thread.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "paceline/engine/core/system/fd.h"
#include "paceline/files/checkpoint/manifest.h"

namespace paceline {

inline constexpr std::uint64_t kSafetensorsHeaderLimit = std::uint64_t{16} << 20;

// The order of tensors in a file: by decreasing size of their elements, then by name, so that each
// tensor is aligned to its elements.
struct SafetensorsLayout {
  std::string head;                // the first bytes of the file: the length and the header
  std::vector<std::size_t> order;  // indices of the tensors, in the order of their bytes
};

// The description of a tensor in the header.
struct TensorEntry {
  std::string name;
  Dtype dtype = Dtype::kFloat32;
  std::vector<std::int64_t> shape;
  std::uint64_t bytes = 0;
  // The name of an element type that has no Dtype, such as "F8_E4M3". If it is not empty, `dtype`
  // is meaningless and `bytes` has not been compared with the shape.
  std::string foreign_type = {};
};

// Error(kInvalid) when the header would be too long; or, with the name of the tensor, when its
// bytes do not match its shape, or when its name is used twice, empty or not UTF-8.
SafetensorsLayout plan_safetensors(const std::vector<TensorEntry>& tensors,
                                   const std::map<std::string, std::string>& metadata);

// The parsed header of a file.
struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // in the order of the file, contiguous from `data` on
  std::uint64_t data = 0;            // the offset of the first tensor in the file
  std::map<std::string, std::string> metadata;
};

// Whether an element type without a Dtype is an error, or is kept in TensorEntry::foreign_type.
enum class ForeignTypes { kRefuse, kKeep };

// `head`: the first bytes of a file of `size` bytes, with all of its header. Error(kCorrupt), which
// begins with `where`, for a file that is not valid; if the first bytes are those of another format
// (a Git LFS pointer, a web page, a file of torch.save), the message names it. Error(kUnsupported)
// for an element type without a Dtype, unless `foreign` is kKeep.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> head, std::uint64_t size,
                                           const std::string& where,
                                           ForeignTypes foreign = ForeignTypes::kRefuse);
// The number of bytes of a file that parse_safetensors_header() needs. `head`: the file's first
// bytes, at least 8. Errors are those of parse_safetensors_header().
std::uint64_t safetensors_head_bytes(std::span<const std::byte> head, std::uint64_t size,
                                     const std::string& where);

// A safetensors file whose tensors are read one by one, so that memory is needed for one tensor
// only.
class SafetensorsFile {
 public:
  // Reads the header. Errors of open_plain_file() and parse_safetensors_header().
  explicit SafetensorsFile(const std::string& path, ForeignTypes foreign = ForeignTypes::kRefuse);

  const SafetensorsHeader& header() const { return header_; }
  // Reads the tensor of this name into `bytes`, which has its size. Errors of read_plain_file_at().
  // Requires: the header has the name.
  void read(const std::string& name, std::span<std::byte> bytes) const;

 private:
  const std::string path_;
  const Fd file_;
  SafetensorsHeader header_;
  std::map<std::string, std::uint64_t> positions_;
};

}  // namespace paceline
