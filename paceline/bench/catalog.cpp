#include "paceline/bench/catalog.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "paceline/process/program.h"

namespace paceline::bench {
namespace {

std::vector<CatalogEntry> make_catalog() {
  return {
      {"paceline", "Paceline", Starter::kPaceline, {}, "it is part of every build: build again"},
      {"memcpy", "memcpy", Starter::kPaceline, {}, "it is part of every build: build again"},
      {"limit", "The limit", Starter::kPaceline, {}, "it is part of every build: build again"},
      {"gloo",
       "Gloo",
       Starter::kPaceline,
       {},
       "apt-get install libgloo-dev, then configure and build Paceline again",
       // On one core its polling thread keeps the waiting one off for a time slice, 4 ms.
       false},
      {"openmpi",
       "Open MPI",
       Starter::kMpirun,
       {"mpirun.openmpi", "orterun", "mpirun"},
       "apt-get install openmpi-bin libopenmpi-dev, then configure and build Paceline again"},
      {"mpich",
       "MPICH",
       Starter::kMpiexec,
       {"mpiexec.mpich", "mpiexec.hydra"},
       "apt-get install mpich libmpich-dev, then configure and build Paceline again"},
      {"oneccl",
       "oneCCL",
       Starter::kPaceline,
       {},
       "pip install oneccl-devel impi-devel in a Python environment ENV, then configure Paceline "
       "with -DPACELINE_ONECCL=ENV and build again"},
  };
}

constexpr std::size_t kNumOwn = 3;  // entries that are not peers

}  // namespace

const std::vector<CatalogEntry>& catalog() {
  static const auto& catalog = *new std::vector<CatalogEntry>(make_catalog());
  return catalog;
}

const CatalogEntry* find_entry(const std::string& name) {
  const auto& all = catalog();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& entry) { return entry.name == name; });
  return found == all.end() ? nullptr : &*found;
}

std::vector<std::string> peer_names() {
  std::vector<std::string> names;
  for (std::size_t i = kNumOwn; i < catalog().size(); ++i) names.push_back(catalog()[i].name);
  return names;
}

Located locate(const CatalogEntry& entry, const std::string& folder, const std::string& path) {
  Located located;
  located.program = fmt::format("{}/bench-{}", folder, entry.name);
  if (!std::filesystem::exists(located.program)) {
    located.missing = fmt::format("{} is not part of this build (no {}); {}", entry.title,
                                  located.program, entry.how_to_get);
    return located;
  }
  for (const std::string& launcher : entry.launchers) {
    try {
      located.launcher = launch::find_program(launcher, path);
      return located;
    } catch (const launch::ProgramError&) {  // the next one
    }
  }
  if (!entry.launchers.empty()) {
    located.missing = fmt::format("{}: its launcher {} is not in PATH; {}", entry.title,
                                  entry.launchers.front(), entry.how_to_get);
  }
  return located;
}

}  // namespace paceline::bench
