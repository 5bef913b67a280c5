#include "paceline/engine/core/system/resource_limits.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string_view>

#include <fmt/format.h>

namespace paceline {

bool CgroupMembership::has(const std::string& controller) const {
  return ("," + controllers + ",").find("," + controller + ",") != std::string::npos;
}

std::string cgroup_text(const std::string& process) {
  std::stringstream text;
  text << std::ifstream(process + "/cgroup").rdbuf();
  return text.str();
}

std::vector<std::string> cgroup_folders(const std::string& mount, std::string_view path) {
  std::vector<std::string> folders;
  for (; path.starts_with('/') && path.size() > 1; path = path.substr(0, path.rfind('/')))
    folders.push_back(fmt::format("{}{}", mount, path));
  folders.push_back(mount);
  return folders;
}

std::optional<std::uint64_t> number_in_file(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

std::map<std::string, std::uint64_t> numbers_in_file(const std::string& path) {
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

std::vector<CgroupMembership> cgroup_memberships(const std::string& text) {
  std::vector<CgroupMembership> memberships;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    // hierarchy:controllers:path
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    memberships.push_back({line.substr(first + 1, second - first - 1), line.substr(second + 1)});
  }
  return memberships;
}

namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<double> quota_of(const std::string& quota_text, const std::string& period_text) {
  const double quota = std::atof(quota_text.c_str());
  const double period = std::atof(period_text.c_str());
  if (quota <= 0 || period <= 0) return {};
  return quota / period;
}

std::optional<double> quota_of_folder(const std::string& folder, bool unified) {
  if (!unified) {
    return quota_of(first_line(folder + "/cpu.cfs_quota_us"),
                    first_line(folder + "/cpu.cfs_period_us"));
  }
  std::istringstream line(first_line(folder + "/cpu.max"));
  std::string quota, period;
  line >> quota >> period;
  return quota == "max" ? std::nullopt : quota_of(quota, period);
}

}  // namespace

std::optional<CpuQuota> cgroup_cpu_quota(const std::string& root, const std::string& membership) {
  std::optional<double> smallest;
  for (const CgroupMembership& cgroup : cgroup_memberships(membership)) {
    const bool unified = cgroup.is_unified();
    if (!unified && !cgroup.has("cpu")) continue;
    const std::string mount = unified ? root : fmt::format("{}/cpu", root);
    for (const std::string& folder : cgroup_folders(mount, cgroup.path)) {
      const auto quota = quota_of_folder(folder, unified);
      if (quota && (!smallest || *quota < *smallest)) smallest = quota;
    }
  }
  return smallest ? std::optional(CpuQuota{*smallest, "the cgroup"}) : std::nullopt;
}

std::optional<CpuQuota> slurm_cpu_quota(const VariableLookup& variable) {
  // SLURM_CPUS_PER_TASK does not apply to two kinds of processes: a process outside of any step,
  // which acts for all tasks of the node, and the only task of a step, which inherits the job's
  // value whatever its own allocation is.
  const char* tasks = variable("SLURM_STEP_TASKS_PER_NODE");
  const bool is_one_of_many =
      variable("SLURM_STEP_ID") != nullptr && (tasks == nullptr || std::string_view(tasks) != "1");
  for (const char* name : {"SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"}) {
    const char* text = variable(name);
    if (text == nullptr) continue;
    if (!is_one_of_many && std::string_view(name) == "SLURM_CPUS_PER_TASK") continue;
    const int cpus = std::atoi(text);
    if (cpus > 0) return CpuQuota{static_cast<double>(cpus), name};
  }
  return {};
}

namespace {

std::uint64_t difference(std::uint64_t a, std::uint64_t b) { return a > b ? a - b : 0; }

// The memory left below the limit of one cgroup folder; nullopt if the folder has no limit.
std::optional<std::uint64_t> room_of(const std::string& folder, bool is_unified,
                                     std::uint64_t free_swap) {
  const auto file = [&](const char* unified, const char* first) {
    return folder + (is_unified ? unified : first);
  };
  const auto limit = number_in_file(file("/memory.max", "/memory.limit_in_bytes"));
  const auto used = number_in_file(file("/memory.current", "/memory.usage_in_bytes"));
  if (!limit || !used || *limit >= kNoMemoryLimit) return {};
  auto numbers = numbers_in_file(folder + "/memory.stat");
  const std::uint64_t files = is_unified
                                  ? numbers["inactive_file"] + numbers["active_file"]
                                  : numbers["total_inactive_file"] + numbers["total_active_file"];
  std::uint64_t swap = free_swap;
  if (const auto most = number_in_file(folder + "/memory.swap.max"); is_unified && most) {
    swap = std::min(swap,
                    difference(*most, number_in_file(folder + "/memory.swap.current").value_or(0)));
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
  const auto machine = numbers_in_file(proc + "/meminfo");
  const auto available = machine.find("MemAvailable:");
  if (available == machine.end()) return {};
  const auto swap = machine.find("SwapFree:");
  const std::uint64_t free_swap = swap == machine.end() ? 0 : swap->second * 1024;
  MemoryRoom room{available->second * 1024 + free_swap, "of the machine's memory"};
  const auto cgroup = memory_cgroup(cgroups, cgroup_text(proc + "/self"));
  if (!cgroup) return room;
  for (const std::string& folder : cgroup_folders(cgroup->mount, cgroup->path)) {
    const auto bytes = room_of(folder, cgroup->is_unified, free_swap);
    if (bytes && *bytes < room.bytes) room = {*bytes, "below the limit of " + folder};
  }
  return room;
}

}  // namespace paceline
