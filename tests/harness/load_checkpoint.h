#pragma once

// Reads whole checkpoints in the same way as a rank reads its part: first the manifest, then boxes.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "paceline/files/checkpoint/box_file.h"
#include "paceline/files/checkpoint/checkpoint_directory.h"
#include "paceline/files/checkpoint/file_system.h"
#include "paceline/files/checkpoint/manifest.h"

namespace paceline::harness {

struct Refused {
  std::int64_t step = 0;
  std::string reason;
};

struct Loaded {
  Manifest manifest;
  std::map<std::string, std::vector<std::byte>> tensors;  // row-major, by name
  std::vector<Refused> refused;  // newer checkpoints that could not be loaded, the newest first
};

inline Loaded load(const CheckpointDirectory& directory, std::int64_t step) {
  directory.require_step(step);
  Loaded loaded{.manifest = directory.read_manifest(step), .tensors = {}, .refused = {}};
  std::vector<WantedBox> wanted;
  for (const StoredTensor& tensor : loaded.manifest.tensors) {
    std::vector<std::byte>& bytes = loaded.tensors[tensor.name];
    bytes.resize(tensor.bytes());
    wanted.push_back({tensor.name, whole_box(tensor.shape), bytes.data()});
  }
  BoxReader(directory.files(), directory.folder_of(step), loaded.manifest).read(wanted);
  return loaded;
}

// Loads the newest checkpoint that can be loaded.
inline std::optional<Loaded> load_newest(const CheckpointDirectory& directory,
                                         const std::string& run = "") {
  std::vector<Refused> refused;
  const auto refuse = [&](std::int64_t step, const std::string& reason) {
    refused.push_back({step, reason});
  };
  std::int64_t before = std::numeric_limits<std::int64_t>::max();
  while (const auto manifest = directory.newest_before(before, run, refuse)) {
    before = manifest->step;
    try {
      Loaded loaded = load(directory, before);
      loaded.refused = std::move(refused);
      return loaded;
    } catch (const Error& error) {
      refuse(before, error.what());
    }
  }
  return std::nullopt;
}

}  // namespace paceline::harness
