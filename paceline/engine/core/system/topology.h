#pragma once

// The physical cores that this process may use, each with its hardware threads (cpus), NUMA node,
// package and cache, and the quota that may limit the process's cpu time. hwloc reads the machine;
// the cpuset and the affinity mask decide which cores the process may use. I/O devices are not
// read, because that would cost tens of milliseconds.
//
// A topology is a value: tests build their own, or let hwloc synthesise or load one. Cores are in
// hardware order, so that neighbours share caches and NUMA nodes.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/core/system/resource_limits.h"

namespace paceline {

struct Core {
  std::vector<int> cpus;  // the kernel's numbers of its hardware threads, ascending
  int numa_node = 0;      // the kernel's number
  int package = 0;        // counted from 0, as are `cache` and `cluster`
  int cache = 0;          // the core's outermost cache (L3, or L2 if there is no L3)
  int cluster = 0;        // the smallest group of cores that share something: an ARM cluster or
                          // a module with one L2; may be the same as `cache`
  double speed = 1;       // relative to the fastest kind of core in the machine; 1 when unknown
  int number = 0;         // from 0 over the whole machine
  bool operator==(const Core&) const = default;
};

struct NumaNode {
  int number = 0;  // the kernel's number
  std::uint64_t bytes = 0;
  bool operator==(const NumaNode&) const = default;
};

struct Cache {
  int level = 0;  // 3 for an L3
  std::uint64_t bytes = 0;
  bool operator==(const Cache&) const = default;
};

struct Topology {
  std::vector<Core> cores;        // cores that this process may use; never empty
  std::vector<Core> other_cores;  // cores, and parts of cores, that this process may not use
  std::vector<NumaNode> numa_nodes;
  std::vector<Cache> caches;  // indexed by Core::cache; empty when unknown
  std::optional<CpuQuota> quota;

  int num_cores() const { return static_cast<int>(cores.size()); }
  int num_cpus() const;
  // All cpus of `cores`, ascending.
  std::vector<int> cpus() const;
  // The number of cores that can be busy at once: num_cores(), or less under a quota; at least 1.
  int num_usable_cores() const;
};

// The part of the machine that this process may use. Throws Error(kSystem) when hwloc cannot read
// the machine.
Topology discover_topology();

// Returns the topology of another machine, from a file that `lstopo FILE.xml` wrote (the name ends
// in .xml), or from a description in hwloc's syntax, "package:2 numa:1 l3:2 core:4 pu:2". The
// result has no quota, and masks in the file are ignored. Throws Error(kInvalid) when hwloc does
// not understand `description`.
Topology load_topology(const std::string& description);

// Returns `topology` with all cpus that are not in `cpus` moved to other_cores. Throws
// Error(kInvalid) when no core is left. Requires: `cpus` is ascending.
Topology restrict_topology(const Topology& topology, const std::vector<int>& cpus);

// A set of cpus as the kernel and taskset write it: "0-3,8". Requires: `cpus` is ascending.
std::string format_cpu_list(const std::vector<int>& cpus);

// The cpus in a list such as "0-3,8", ascending, without duplicates; nullopt when the text has
// another form or names a cpu above 65535.
std::optional<std::vector<int>> parse_cpu_list(const std::string& text);

}  // namespace paceline
