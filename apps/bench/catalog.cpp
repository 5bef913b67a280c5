#include "apps/bench/catalog.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

namespace paceline::bench {
namespace {

CatalogEntry own_entry(const char* name, const char* title) {
  return {.name = name,
          .title = title,
          .how_to_get = "it is part of every build: build again",
          .is_peer = false};
}

std::vector<CatalogEntry> make_catalog() {
  return {
      own_entry("paceline", "Paceline"),
      own_entry("memcpy", "memcpy"),
      own_entry("limit", "The limit"),
      {.name = "gloo",
       .title = "Gloo",
       .how_to_get = "apt-get install libgloo-dev, then configure and build Paceline again",
       // On one core Gloo's polling thread would keep the waiting thread from running for a time
       // slice, 4 ms.
       .bound = false},
      {.name = "openmpi",
       .title = "Open MPI",
       .starter = Starter::kMpirun,
       .launchers = {"mpirun.openmpi", "orterun", "mpirun"},
       .how_to_get = "apt-get install openmpi-bin libopenmpi-dev, then configure and build "
                     "Paceline again"},
      {.name = "mpich",
       .title = "MPICH",
       .starter = Starter::kMpiexec,
       .launchers = {"mpiexec.mpich", "mpiexec.hydra"},
       .how_to_get = "apt-get install mpich libmpich-dev, then configure and build Paceline again"},
      {.name = "oneccl",
       .title = "oneCCL",
       .how_to_get = "pip install oneccl-devel impi-devel in a Python environment ENV, then "
                     "configure Paceline with -DPACELINE_ONECCL=ENV and build again"},
  };
}

// Processes that make or serve calls are not bound, because each has several threads.
std::vector<CatalogEntry> make_call_catalog() {
  std::vector<CatalogEntry> entries = {
      own_entry("paceline", "Paceline"),
      own_entry("memcpy", "memcpy"),
      {.name = "socket",
       .title = "A raw socket",
       .how_to_get = "it is part of every build: build again"},
      {.name = "grpc",
       .title = "gRPC",
       .how_to_get = "apt-get install libgrpc++-dev, then configure and build Paceline again"},
      {.name = "capnp",
       .title = "Cap'n Proto",
       .how_to_get = "apt-get install libcapnp-dev capnproto, then configure and build Paceline "
                     "again"},
      {.name = "torch",
       .title = "torch RPC",
       .how_to_get = "it is part of every build: build again"},
  };
  for (CatalogEntry& entry : entries) {
    entry.prefix = "bench-rpc-";
    entry.bound = false;
  }
  return entries;
}

}  // namespace

const std::vector<CatalogEntry>& catalog(Subject subject) {
  static const auto& collectives = *new std::vector<CatalogEntry>(make_catalog());
  static const auto& calls = *new std::vector<CatalogEntry>(make_call_catalog());
  return subject == Subject::kCollectives ? collectives : calls;
}

const CatalogEntry* find_entry(const std::string& name, Subject subject) {
  const auto& all = catalog(subject);
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& entry) { return entry.name == name; });
  return found == all.end() ? nullptr : &*found;
}

std::vector<std::string> peer_names(Subject subject) {
  std::vector<std::string> names;
  for (const CatalogEntry& entry : catalog(subject)) {
    if (entry.is_peer) names.push_back(entry.name);
  }
  return names;
}

Located locate(const CatalogEntry& entry, const std::string& folder, const std::string& path) {
  Located located;
  located.program = fmt::format("{}/{}{}", folder, entry.prefix, entry.name);
  if (!std::filesystem::exists(located.program)) {
    located.missing = fmt::format("{} is not part of this build (no {}); {}", entry.title,
                                  located.program, entry.how_to_get);
    return located;
  }
  for (const std::string& launcher : entry.launchers) {
    try {
      located.launcher = launcher::find_program(launcher, path);
      return located;
    } catch (const launcher::ProgramError&) {  // tries the next one
    }
  }
  if (!entry.launchers.empty()) {
    located.missing = fmt::format("{}: its launcher {} is not in PATH; {}", entry.title,
                                  entry.launchers.front(), entry.how_to_get);
  }
  return located;
}

}  // namespace paceline::bench
