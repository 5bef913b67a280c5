#pragma once

// The physical cores that this process may use, each with its hardware threads (cpus), and how much
// of their time the cgroup grants. hwloc reads it; the cpuset and the affinity mask of the process
// are respected, I/O devices are not looked at (that would cost tens of milliseconds).
//
// A value: tests build their own. Order matters: cores are in hardware order, so neighbours share
// caches and NUMA nodes.

#include <optional>
#include <string>
#include <vector>

namespace paceline {

struct Core {
  std::vector<int> cpus;  // the kernel's numbers of its hardware threads, ascending
  int numa_node = 0;
  bool operator==(const Core&) const = default;
};

struct Topology {
  std::vector<Core> cores;          // never empty
  std::optional<double> cpu_quota;  // cpus' worth of time the cgroup grants; nothing when unlimited

  int num_cores() const { return static_cast<int>(cores.size()); }
  int num_cpus() const;
  // The cores that can really be busy at once: num_cores(), or less under a quota; at least 1.
  int num_usable_cores() const;
};

// What this process was given. Error(kSystem) when hwloc cannot read the machine.
Topology discover_topology();

// The limit of cgroup v2 (cpu.max) or v1 (cpu.cfs_quota_us), the smallest on the way up from this
// process's group. `root` is where the cgroup file systems are mounted, `membership` the text of
// /proc/self/cgroup.
std::optional<double> cgroup_cpu_quota(const std::string& root, const std::string& membership);

// "0-3,8": ranges as the kernel writes them. Requires: ascending.
std::string format_cpu_list(const std::vector<int>& cpus);

}  // namespace paceline
