#include "paceline/collectives/backends/library_list.h"

#include <mutex>

#include "paceline/collectives/backends/gloo/gloo_library.h"
#include "paceline/collectives/backends/mpi/mpi_library.h"
#include "paceline/collectives/backends/nccl/nccl_library.h"
#include "paceline/collectives/backends/oneccl/oneccl_library.h"
#include "paceline/core/check.h"

namespace paceline {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<LibraryEntry> entries = {{gloo_info(), connect_gloo},
                                       {mpi_info(), connect_mpi},
                                       {oneccl_info(), connect_oneccl},
                                       {nccl_info(), connect_nccl}};
};

Registry& registry() {
  static Registry all;
  return all;
}

}  // namespace

std::vector<LibraryEntry> list_libraries() {
  const std::lock_guard lock(registry().mutex);
  return registry().entries;
}

void register_library(LibraryEntry entry) {
  const std::lock_guard lock(registry().mutex);
  for (const LibraryEntry& other : registry().entries) {
    check(other.info.name != entry.info.name && entry.info.name != "paceline",
          "backend '{}' exists already; choose another name", entry.info.name);
  }
  registry().entries.push_back(std::move(entry));
}

}  // namespace paceline
