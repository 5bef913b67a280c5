#pragma once

// The table of contents of one checkpoint: which tensors it has, of which boxes they consist and in
// which file each lies; and the digest that seals it.
//
// Thread safety: values and pure functions.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/engine/core/dtype.h"
#include "paceline/files/checkpoint/box.h"

namespace paceline {

// XXH3-128 of bytes that come in pieces, at memory speed. It finds accidents (bit rot, truncation,
// a foreign file), not forgers: a program that can write the file can write the digest.
class Digest {
 public:
  Digest();
  ~Digest();
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;

  void update(std::span<const std::byte> bytes);
  // 32 lower-case hexadecimal digits, the canonical (big-endian) form that `xxhsum -H2` prints.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string digest_of(std::span<const std::byte> bytes);

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr int kManifestVersion = 3;
inline constexpr std::uint64_t kManifestLimit = std::uint64_t{64} << 20;

struct ManifestFile {
  std::string name;  // in the checkpoint's own folder: no slash, not "." or ".."
  std::uint64_t size = 0;
  std::string digest;  // XXH3-128 in hexadecimal of what follows the boxes: sums and trailer

  bool operator==(const ManifestFile&) const = default;
};

// A box in row-major order.
struct StoredBox {
  Box box;
  std::uint32_t file = 0;      // its number in `files`
  std::uint64_t position = 0;  // of the box's first byte in the file

  bool operator==(const StoredBox&) const = default;
};

struct StoredTensor {
  std::string name;
  Dtype dtype = Dtype::kFloat32;
  std::vector<std::int64_t> shape;
  std::vector<StoredBox> boxes;  // each element in one; none when it has no elements

  bool operator==(const StoredTensor&) const = default;
  std::uint64_t bytes() const;
};

// Its text is JSON in one canonical form that ends with the digest of the rest, so that a manifest
// cannot change unnoticed. It has the digest of each file's sums (box_file.h), and these are sums
// of the bytes.
struct Manifest {
  std::int64_t step = 0;
  std::string run;  // that saved it; empty: unknown
  int world_size = 1;
  std::vector<ManifestFile> files;
  std::vector<StoredTensor> tensors;  // by name
  std::map<std::string, std::string> metadata;

  bool operator==(const Manifest&) const = default;
  // Null when there is none.
  const StoredTensor* find(std::string_view name) const;
  // The bytes of all tensors.
  std::uint64_t bytes() const;
};

// The size of a tensor in bytes; nothing for a negative dimension, or when it overflows 63 bits.
std::optional<std::uint64_t> tensor_bytes(Dtype dtype, const std::vector<std::int64_t>& shape);

// "float32 [64, 3]"
std::string describe(Dtype dtype, const std::vector<std::int64_t>& shape);

// Error(kInvalid) naming it unless its boxes are all of it, each element once.
void require_whole(const StoredTensor& tensor);

// Error(kInvalid) when a name or the metadata are not UTF-8, a name is taken or empty, or a
// tensor's boxes are not all of it, each element once.
std::string to_json(const Manifest& manifest);

// Error(kCorrupt) as `where: …` for anything that to_json did not write: a tensor with an element
// in no box or in two, boxes that share bytes of a file or lie outside of it. Error(kUnsupported)
// for another version.
Manifest parse_manifest(std::string_view text, const std::string& where);

}  // namespace paceline
