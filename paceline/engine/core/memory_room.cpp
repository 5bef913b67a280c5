#include "paceline/engine/core/memory_room.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <string_view>

#include <fmt/format.h>

#include "paceline/engine/core/cgroup_membership.h"

namespace paceline {
namespace {

// Above this a limit of cgroup v1 means none: the largest number of whole pages.
constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 60;

// A file of lines "key number" or "key: number kB".
std::map<std::string, std::uint64_t> numbers_in(const std::string& path) {
  std::map<std::string, std::uint64_t> numbers;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string key;
    std::uint64_t number = 0;
    if (words >> key >> number) numbers[key] = number;
  }
  return numbers;
}

// Nothing for "max" too.
std::optional<std::uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

std::uint64_t difference(std::uint64_t a, std::uint64_t b) { return a > b ? a - b : 0; }

// Below the limit of one folder; nothing where it has none.
std::optional<std::uint64_t> room_of(const std::string& folder, bool is_unified,
                                     std::uint64_t free_swap) {
  const auto file = [&](const char* unified, const char* first) {
    return folder + (is_unified ? unified : first);
  };
  const auto limit = number_in(file("/memory.max", "/memory.limit_in_bytes"));
  const auto used = number_in(file("/memory.current", "/memory.usage_in_bytes"));
  if (!limit || !used || *limit >= kNoLimit) return {};
  auto numbers = numbers_in(folder + "/memory.stat");
  const std::uint64_t files = is_unified
                                  ? numbers["inactive_file"] + numbers["active_file"]
                                  : numbers["total_inactive_file"] + numbers["total_active_file"];
  std::uint64_t swap = free_swap;
  if (const auto most = number_in(folder + "/memory.swap.max"); is_unified && most) {
    swap =
        std::min(swap, difference(*most, number_in(folder + "/memory.swap.current").value_or(0)));
  }
  return difference(*limit, difference(*used, files)) + swap;
}

}  // namespace

std::optional<MemoryCgroup> memory_cgroup(const std::string& root, const std::string& membership) {
  std::optional<MemoryCgroup> unified;
  for (const CgroupMembership& cgroup : cgroup_memberships(membership)) {
    if (cgroup.has("memory")) return MemoryCgroup{root + "/memory", cgroup.path, false};
    if (cgroup.is_unified()) unified = MemoryCgroup{root, cgroup.path, true};
  }
  return unified;
}

std::optional<MemoryRoom> memory_room(const std::string& cgroups, const std::string& proc) {
  const auto machine = numbers_in(proc + "/meminfo");
  const auto available = machine.find("MemAvailable:");
  if (available == machine.end()) return {};
  const auto swap = machine.find("SwapFree:");
  const std::uint64_t free_swap = swap == machine.end() ? 0 : swap->second * 1024;
  MemoryRoom room{available->second * 1024 + free_swap, "of the machine's memory"};
  std::stringstream membership;
  membership << std::ifstream(proc + "/self/cgroup").rdbuf();
  const auto cgroup = memory_cgroup(cgroups, membership.str());
  if (!cgroup) return room;
  const auto look_at = [&](std::string_view path) {
    const std::string folder = fmt::format("{}{}", cgroup->mount, path);
    const auto bytes = room_of(folder, cgroup->is_unified, free_swap);
    if (bytes && *bytes < room.bytes) room = {*bytes, "below the limit of " + folder};
  };
  for (std::string_view path = cgroup->path; path.size() > 1;
       path = path.substr(0, path.rfind('/')))
    look_at(path);
  look_at("");
  return room;
}

}  // namespace paceline
