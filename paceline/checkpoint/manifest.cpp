#include "paceline/checkpoint/manifest.h"

#include "paceline/checkpoint/digest.h"
#include "paceline/checkpoint/strict_json.h"
#include "paceline/core/bytes.h"
#include "paceline/core/check.h"

namespace paceline {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "paceline-checkpoint";
constexpr const char* kDigestKey = "xxh3_128_of_the_rest";

std::string dump(const json& value) {
  try {
    return value.dump(2) + "\n";
  } catch (const json::exception& error) {
    fail(ErrorCode::kInvalid, "checkpoint: a name or a metadata value is not UTF-8: {}",
         error.what());
  }
}

std::string seal(json value) {
  value[kDigestKey] = digest_of(as_bytes(dump(value)));
  return dump(value);
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name != kManifestFile &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

Manifest from_json(const json& value, const std::string& where) {
  Manifest manifest;
  manifest.run = value.at("run").get<std::string>();
  manifest.step = value.at("step").get<std::int64_t>();
  manifest.world_size = value.at("world_size").get<int>();
  for (const auto& item : value.at("files")) {
    ManifestFile file{item.at("name").get<std::string>(), item.at("size").get<std::uint64_t>(),
                      item.at("xxh3_128").get<std::string>()};
    if (!is_plain_name(file.name)) {
      fail(ErrorCode::kCorrupt, "{}: \"{}\" is not a plain file name", where, file.name);
    }
    manifest.files.push_back(std::move(file));
  }
  manifest.metadata = value.at("metadata").get<std::map<std::string, std::string>>();
  return manifest;
}

// The digest is checked before a field is believed, so what remains to be refused was sealed by
// another writer.
void check_seal(json value, std::string_view text, const std::string& where) {
  const auto found = value.find(kDigestKey);
  if (found == value.end() || !found->is_string()) {
    fail(ErrorCode::kCorrupt, "{}: its digest \"{}\" is missing", where, kDigestKey);
  }
  const auto expected = found->get<std::string>();
  value.erase(found);
  const auto actual = digest_of(as_bytes(dump(value)));
  if (expected != actual) {
    fail(ErrorCode::kCorrupt, "{}: digest of the rest: expected {}, found {}", where, expected,
         actual);
  }
  if (seal(value) != text) {
    fail(ErrorCode::kCorrupt, "{}: not in the form it was written in", where);
  }
}

}  // namespace

std::string to_json(const Manifest& manifest) {
  json files = json::array();
  for (const auto& file : manifest.files) {
    files.push_back({{"name", file.name}, {"size", file.size}, {"xxh3_128", file.digest}});
  }
  return seal({{"format", kFormat},
               {"version", kManifestVersion},
               {"step", manifest.step},
               {"run", manifest.run},
               {"world_size", manifest.world_size},
               {"files", files},
               {"metadata", manifest.metadata}});
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  constexpr int kDepth = 3;  // the manifest, its files, a file
  const auto value = parse_strict_json(text, where, kDepth);
  check_seal(value, text, where);
  try {
    if (value.at("format") != kFormat) fail(ErrorCode::kCorrupt, "{}: not a checkpoint", where);
    const int version = value.at("version").get<int>();
    if (version != kManifestVersion) {
      fail(ErrorCode::kUnsupported, "{}: format version {}; this release reads version {}", where,
           version, kManifestVersion);
    }
    return from_json(value, where);
  } catch (const json::exception& error) {
    fail(ErrorCode::kCorrupt, "{}: {}", where, error.what());
  }
}

}  // namespace paceline
