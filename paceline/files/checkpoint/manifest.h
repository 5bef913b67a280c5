#pragma once

// The table of contents of a checkpoint: its tensors, the boxes that each tensor consists of, and
// the file of each box. Its text contains a digest of the rest of the text.
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

#include "paceline/engine/core/dtype_traits.h"
#include "paceline/files/checkpoint/box.h"

namespace paceline {

// Computes the XXH3-128 digest of bytes that are passed in parts, at memory speed. The digest
// detects accidents (bit rot, truncation, another file), not forgery: a program that can write the
// file can also write the digest.
class Digest {
 public:
  Digest();
  ~Digest();
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;

  void update(std::span<const std::byte> bytes);
  // The 32 lower-case hexadecimal digits in canonical (big-endian) form that `xxhsum -H2` prints.
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
  std::string name;  // in the checkpoint's folder: without a slash, not "." or ".."
  std::uint64_t size = 0;
  std::string digest;  // the XXH3-128, in hexadecimal, of the checksums and the trailer

  bool operator==(const ManifestFile&) const = default;
};

// A box that a file stores in row-major order.
struct StoredBox {
  Box box;
  std::uint32_t file = 0;      // index in Manifest::files
  std::uint64_t position = 0;  // the offset of the box's first byte in the file

  bool operator==(const StoredBox&) const = default;
};

struct StoredTensor {
  std::string name;
  Dtype dtype = Dtype::kFloat32;
  std::vector<std::int64_t> shape;
  std::vector<StoredBox> boxes;  // each element is in exactly one; an empty tensor has no box

  bool operator==(const StoredTensor&) const = default;
  std::uint64_t bytes() const;
};

// The text of a manifest is JSON in one canonical form. It ends with the digest of the rest, so
// that no change goes unnoticed. It contains the digest of each file's checksums (box_file.h), and
// the checksums cover the file's bytes.
struct Manifest {
  // The key in `metadata` whose value names a parameter with an infinity or NaN. The newest
  // checkpoint without this key is not removed to make room for later ones with it.
  static constexpr const char* kNotFinite = "not_finite";

  std::int64_t step = 0;
  std::string run;  // the run that saved the checkpoint; empty: unknown
  int world_size = 1;
  std::vector<ManifestFile> files;
  std::vector<StoredTensor> tensors;  // sorted by name
  std::map<std::string, std::string> metadata;

  bool operator==(const Manifest&) const = default;
  // The tensor of this name; null when there is none.
  const StoredTensor* find(std::string_view name) const;
  // The sum of the sizes of all tensors.
  std::uint64_t bytes() const;
};

// The size of a tensor in bytes; nullopt for a negative dimension, or when it overflows 63 bits.
std::optional<std::uint64_t> tensor_bytes(Dtype dtype, const std::vector<std::int64_t>& shape);

// Returns, for instance, "float32 [64, 3]".
std::string describe(Dtype dtype, const std::vector<std::int64_t>& shape);

// Error(kInvalid), with the tensor's name, unless each of its elements is in exactly one box.
void require_whole(const StoredTensor& tensor);

// Error(kInvalid) when a name or the metadata are not UTF-8, when a name is used twice or empty, or
// when an element of a tensor is not in exactly one box.
std::string to_json(const Manifest& manifest);

// Error(kCorrupt), which begins with `where`, for any text that to_json() cannot have written: for
// instance when an element is in no box or in two, or when boxes share bytes of a file or lie
// outside it. Error(kUnsupported) for another version or an unknown element type.
Manifest parse_manifest(std::string_view text, const std::string& where);

}  // namespace paceline
