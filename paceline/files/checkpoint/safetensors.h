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

// How tensors lie in a file: wide elements first, then by name, so that each tensor is aligned to
// its element.
struct SafetensorsLayout {
  std::string head;                // the length and the header: the first bytes of the file
  std::vector<std::size_t> order;  // the tensors' bytes follow in this order of the given indices
};

// The description of a tensor in the header.
struct TensorEntry {
  std::string name;
  Dtype dtype = Dtype::kFloat32;
  std::vector<std::int64_t> shape;
  std::uint64_t bytes = 0;
  // The file's name of an element type that has no Dtype, such as "F8_E4M3". Where it is not empty,
  // `dtype` means nothing and `bytes` has not been compared with the shape.
  std::string foreign_type = {};
};

// Error(kInvalid) naming the tensor when its bytes do not match its shape, its name is taken, empty
// or not UTF-8, or the header would be too long.
SafetensorsLayout plan_safetensors(const std::vector<TensorEntry>& tensors,
                                   const std::map<std::string, std::string>& metadata);

// What the beginning of a file says of the rest of it.
struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // in file order, one after the other from `data` on
  std::uint64_t data = 0;            // byte of the file
  std::map<std::string, std::string> metadata;
};

// An element type without a Dtype is an error, or is kept in TensorEntry::foreign_type.
enum class ForeignTypes { kRefuse, kKeep };

// `head`: the first bytes of a file of `size` bytes, all of its header among them. Error(kCorrupt)
// as `where: …` for whatever is not a valid file, with what it is where its first bytes tell (a
// pointer of Git LFS, a web page, a file of torch.save); Error(kUnsupported) for an element type
// without a Dtype.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> head, std::uint64_t size,
                                           const std::string& where,
                                           ForeignTypes foreign = ForeignTypes::kRefuse);
// How many bytes of a file parse_safetensors_header() needs; `head`: its first bytes, 8 at least.
// Errors are the same.
std::uint64_t safetensors_head_bytes(std::span<const std::byte> head, std::uint64_t size,
                                     const std::string& where);

// A safetensors file of which tensors are read one by one, so that memory holds only what is read.
class SafetensorsFile {
 public:
  // Reads the header. Errors as of open_plain_file() and parse_safetensors_header().
  explicit SafetensorsFile(const std::string& path, ForeignTypes foreign = ForeignTypes::kRefuse);

  const SafetensorsHeader& header() const { return header_; }
  // Fills `bytes`, which has the size of the tensor of this name. Errors as of
  // read_plain_file_at(). Requires: the header has the name.
  void read(const std::string& name, std::span<std::byte> bytes) const;

 private:
  const std::string path_;
  const Fd file_;
  SafetensorsHeader header_;
  std::map<std::string, std::uint64_t> positions_;
};

}  // namespace paceline
