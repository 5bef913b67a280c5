#pragma once

// The control groups of a process: what the lines of /proc/PID/cgroup say.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace paceline {

// One hierarchy, and the process's place in it.
struct CgroupMembership {
  std::string controllers;  // "cpu,cpuacct"; the unified hierarchy (cgroup v2) has none
  std::string path;         // below the hierarchy's mount

  bool is_unified() const { return controllers.empty(); }
  bool has(const std::string& controller) const;
};

// Of the text of such a file; lines that are none are left out.
std::vector<CgroupMembership> cgroup_memberships(const std::string& text);

// How much cpu time this process may use, where that is less than its cpus could give: a cgroup's
// limit (docker run --cpus, Kubernetes) or a SLURM allocation that is not enforced by a mask.

struct CpuQuota {
  double cpus = 0;     // how many could be busy all the time
  std::string source;  // who says so: "the cgroup", "SLURM_CPUS_PER_TASK"
  bool operator==(const CpuQuota&) const = default;
};

// The limit of cgroup v2 (cpu.max) or v1 (cpu.cfs_quota_us), the smallest on the way up from this
// process's group. `root` is where the cgroup file systems are mounted, `membership` the text of
// /proc/self/cgroup.
std::optional<CpuQuota> cgroup_cpu_quota(const std::string& root, const std::string& membership);

// What a SLURM task was allotted: SLURM_CPUS_PER_TASK inside a step, otherwise SLURM_CPUS_ON_NODE.
// Without a plugin that sets masks, SLURM gives every task all cpus of the node and only says by
// these variables how many are its own. `variable` looks one up; null when it is not set.
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
