#include "paceline/launcher/diagnosis/memory_counters.h"

#include <fstream>
#include <sstream>
#include <string_view>

#include <fmt/format.h>

#include "paceline/engine/core/memory_room.h"

namespace paceline::launcher {
namespace {

// Above this a limit of cgroup v1 means none: the largest number of whole pages.
constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 60;

// The number behind `key` in a file of lines "key number" or "key: number kB".
std::optional<std::uint64_t> number_of(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    std::uint64_t number = 0;
    if (words >> word >> number && word == key) return number;
  }
  return {};
}

std::optional<std::uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

void look_for_limit(const MemoryCgroup& hierarchy, MemoryCounters& counters) {
  const char* const limit_file = hierarchy.is_unified ? "memory.max" : "memory.limit_in_bytes";
  const auto look_at = [&](std::string_view path) {
    const std::string file = fmt::format("{}{}/{}", hierarchy.mount, path, limit_file);
    const auto limit = number_in(file);
    if (!limit || *limit >= kNoLimit || (counters.limit && *limit >= *counters.limit)) return;
    counters.limit = limit;
    counters.limit_source = file;
  };
  for (std::string_view path = hierarchy.path; path.size() > 1;
       path = path.substr(0, path.rfind('/'))) {
    look_at(path);
  }
  look_at("");
}

}  // namespace

MemoryCounters read_memory_counters(const std::string& cgroups, const std::string& proc) {
  MemoryCounters counters;
  counters.machine_kills = number_of(proc + "/vmstat", "oom_kill");
  counters.machine_bytes = number_of(proc + "/meminfo", "MemTotal:").value_or(0) * 1024;
  std::stringstream membership;
  membership << std::ifstream(proc + "/self/cgroup").rdbuf();
  const auto hierarchy = memory_cgroup(cgroups, membership.str());
  if (!hierarchy) return counters;
  const std::string folder = hierarchy->mount + (hierarchy->path == "/" ? "" : hierarchy->path);
  counters.cgroup_kills = number_of(folder + "/memory.events", "oom_kill");
  if (!counters.cgroup_kills) {
    counters.cgroup_kills = number_of(folder + "/memory.oom_control", "oom_kill");
  }
  look_for_limit(*hierarchy, counters);
  return counters;
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr double kMiB = 1 << 20;
  const double mib = static_cast<double>(bytes) / kMiB;
  return mib < 1024 ? fmt::format("{:.0f} MiB", mib) : fmt::format("{:.1f} GiB", mib / 1024);
}

}  // namespace paceline::launcher
