#pragma once

// The communication libraries that groups can choose: the leaves of this build and what layers
// above have added. Thread safety: every function may be called from any thread.

#include <functional>
#include <memory>
#include <vector>

#include "paceline/engine/collectives/backends/backend_list.h"
#include "paceline/engine/collectives/backends/library.h"

namespace paceline {

struct LibraryEntry {
  BackendInfo info;
  // Connects the ranks of a group that chose it. Collective.
  std::function<std::unique_ptr<Library>(const LibraryContext&)> connect;
};

std::vector<LibraryEntry> list_libraries();
// From now on groups of this process can choose it. Error(kInvalid) when the name is taken.
void register_library(LibraryEntry entry);

}  // namespace paceline
