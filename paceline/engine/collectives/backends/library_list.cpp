#include "paceline/engine/collectives/backends/library_list.h"

#include <mutex>
#include <utility>

#include "paceline/engine/core/check.h"

namespace paceline {
namespace {

// The entry of a library that is not part of this build; cmake/PacelineBackends.cmake sets
// PACELINE_NO_<NAME> to the reason.
[[maybe_unused]] LibraryEntry missing(const char* name, Device device, const char* why,
                                      const char* advice) {
  BackendInfo info{.name = name, .device = device, .text = why, .advice = advice};
  const auto connect = [info](const LibraryContext&) -> std::unique_ptr<Library> {
    throw backend_missing(info);
  };
  return {std::move(info), connect};
}

struct Registry {
  std::mutex mutex;  // guards entries
  std::vector<LibraryEntry> entries = {
#ifdef PACELINE_NO_GLOO
      missing("gloo", Device::kCpu, PACELINE_NO_GLOO,
              "apt-get install libgloo-dev, then build with -DPACELINE_WITH_GLOO=ON"),
#else
      {gloo_info(), connect_gloo},
#endif
#ifdef PACELINE_NO_MPI
      missing("mpi", Device::kCpu, PACELINE_NO_MPI,
              "apt-get install libopenmpi-dev openmpi-bin (or libmpich-dev mpich), then build "
              "with -DPACELINE_WITH_MPI=ON"),
#else
      {mpi_info(), connect_mpi},
#endif
#ifdef PACELINE_NO_ONECCL
      missing("oneccl", Device::kCpu, PACELINE_NO_ONECCL,
              "pip install oneccl-devel impi-devel in a virtual environment, then build with "
              "-DPACELINE_ONECCL=FOLDER of the environment"),
#else
      {oneccl_info(), connect_oneccl},
#endif
      {nccl_info(), connect_nccl},
  };
};

// Never destroyed, because a group in a global variable may be destroyed later.
Registry& registry() {
  static auto& all = *new Registry;
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
