#pragma once

// How much cpu time this process may use, where that is less than its cpus could give: a cgroup's
// limit (docker run --cpus, Kubernetes) or a SLURM allocation that is not enforced by a mask.

#include <functional>
#include <optional>
#include <string>

namespace paceline {

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

}  // namespace paceline
