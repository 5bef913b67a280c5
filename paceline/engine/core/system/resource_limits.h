#pragma once

// How much cpu time and memory this process may take: what its control groups, SLURM and the
// machine leave it.
//
// Thread safety: free functions without state.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace paceline {

// One hierarchy of control groups, and a process's place in it.
struct CgroupMembership {
  std::string controllers;  // "cpu,cpuacct"; the unified hierarchy (cgroup v2) has none
  std::string path;         // below the hierarchy's mount

  bool is_unified() const { return controllers.empty(); }
  bool has(const std::string& controller) const;
};

// The text of the file `cgroup` in a process's folder of /proc.
std::string cgroup_text(const std::string& process = "/proc/self");
// The memberships in its lines; lines of another form are left out.
std::vector<CgroupMembership> cgroup_memberships(const std::string& text);
// The folder of a cgroup, those above it, and at last `mount`, where its hierarchy is mounted.
std::vector<std::string> cgroup_folders(const std::string& mount, std::string_view path);

// The number that a file holds; nothing for "max" or without the file.
std::optional<std::uint64_t> number_in_file(const std::string& path);
// A file of lines "key number" or "key: number kB".
std::map<std::string, std::uint64_t> numbers_in_file(const std::string& path);

// How much cpu time this process may use, where that is less than its cpus could give: a cgroup's
// limit (docker run --cpus, Kubernetes) or a SLURM allocation that is not enforced by a mask.
struct CpuQuota {
  double cpus = 0;     // how many could be busy all the time
  std::string source;  // of the limit: "the cgroup", "SLURM_CPUS_PER_TASK"
  bool operator==(const CpuQuota&) const = default;
};

// The limit of cgroup v2 (cpu.max) or v1 (cpu.cfs_quota_us), the smallest on the way up from this
// process's group. `root` is where the cgroup file systems are mounted, `membership` the text of
// /proc/self/cgroup.
std::optional<CpuQuota> cgroup_cpu_quota(const std::string& root, const std::string& membership);

// The cpus that a SLURM task was allotted: SLURM_CPUS_PER_TASK inside a step, otherwise
// SLURM_CPUS_ON_NODE. Without a plugin that sets masks, SLURM gives every task all cpus of the node
// and only says by these variables how many are its own. `variable` looks one up; null when it is
// not set.
using VariableLookup = std::function<const char*(const char* name)>;
std::optional<CpuQuota> slurm_cpu_quota(const VariableLookup& variable);

// How much more memory this process may take before the kernel ends it or another: what the machine
// has left, and the limit of each cgroup that it is in. Files that are kept in memory count as
// free, and so does swap.
struct MemoryRoom {
  std::uint64_t bytes = 0;
  std::string source;  // "of the machine's memory", "below the limit of /sys/fs/cgroup/job"
  bool operator==(const MemoryRoom&) const = default;
};

// A limit of cgroup v1 above this means none: it is the largest number of whole pages.
inline constexpr std::uint64_t kNoMemoryLimit = std::uint64_t{1} << 60;

// Where a process's memory is counted: the folder of its cgroup below `mount`.
struct MemoryCgroup {
  std::string mount;
  std::string path;  // begins with a slash
  bool is_unified = true;
};
// `root` is where the cgroup file systems are mounted, `membership` the text of /proc/self/cgroup.
// Nothing when no cgroup counts it.
std::optional<MemoryCgroup> memory_cgroup(const std::string& root, const std::string& membership);

// Nothing when the machine does not say.
std::optional<MemoryRoom> memory_room(const std::string& cgroups = "/sys/fs/cgroup",
                                      const std::string& proc = "/proc");

}  // namespace paceline
