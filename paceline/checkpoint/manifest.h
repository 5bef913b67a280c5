#pragma once

// The table of contents of one checkpoint, a value: which files belong to it, how long they are and
// what their digests are. Its text is JSON in one canonical form that ends with the digest of the
// rest, so that a manifest cannot change unnoticed either.
//
// Thread safety: pure functions.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace paceline {

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr int kManifestVersion = 2;
inline constexpr std::uint64_t kManifestLimit = std::uint64_t{16} << 20;

struct ManifestFile {
  std::string name;  // in the checkpoint's own folder: no slash, not "." or ".."
  std::uint64_t size = 0;
  std::string digest;  // XXH3-128 in hexadecimal

  bool operator==(const ManifestFile&) const = default;
};

struct Manifest {
  std::int64_t step = 0;
  std::string run;  // that saved it; empty: unknown
  int world_size = 1;
  std::vector<ManifestFile> files;
  std::map<std::string, std::string> metadata;

  bool operator==(const Manifest&) const = default;
};

// Error(kInvalid) when the metadata is not UTF-8.
std::string to_json(const Manifest& manifest);

// Error(kCorrupt) as `where: …` for anything that to_json did not write, Error(kUnsupported) for
// another version.
Manifest parse_manifest(std::string_view text, const std::string& where);

}  // namespace paceline
