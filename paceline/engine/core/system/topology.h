#pragma once

// The physical cores that this process may use, each with its hardware threads (cpus) and the parts
// of the machine it belongs to, and how much of their time it may use. hwloc reads it; the cpuset
// and the affinity mask of the process are respected, I/O devices are not looked at (that would
// cost tens of milliseconds).
//
// A value: tests build their own, or let hwloc make up or load a machine. Cores are in hardware
// order, so neighbours share caches and NUMA nodes.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/core/system/resource_limits.h"

namespace paceline {

struct Core {
  std::vector<int> cpus;  // the kernel's numbers of its hardware threads, ascending
  int numa_node = 0;      // the kernel's number
  int package = 0;        // this and what follows: counted from 0
  int cache = 0;          // the outermost cache it uses (L3, or L2 where there is none)
  int cluster = 0;        // the smallest group of cores with something in common: an ARM cluster,
                          // a module with one L2; `cache` and this may mean the same
  double speed = 1;       // of its kind, relative to the machine's fastest; 1 when unknown
  int number = 0;         // its own, over the whole machine
  bool operator==(const Core&) const = default;
};

struct NumaNode {
  int number = 0;  // the kernel's
  std::uint64_t bytes = 0;
  bool operator==(const NumaNode&) const = default;
};

struct Cache {
  int level = 0;  // 3 for an L3
  std::uint64_t bytes = 0;
  bool operator==(const Cache&) const = default;
};

struct Topology {
  std::vector<Core> cores;        // given to this process; never empty
  std::vector<Core> other_cores;  // the machine's that were not, with their cpus
  std::vector<NumaNode> numa_nodes;
  std::vector<Cache> caches;  // by Core::cache; empty when unknown
  std::optional<CpuQuota> quota;

  int num_cores() const { return static_cast<int>(cores.size()); }
  int num_cpus() const;
  // All cpus of `cores`, ascending.
  std::vector<int> cpus() const;
  // The cores that can really be busy at once: num_cores(), or less under a quota; at least 1.
  int num_usable_cores() const;
};

// The part of the machine that this process was given. Error(kSystem) when hwloc cannot read the
// machine.
Topology discover_topology();

// Another machine: a file that `lstopo FILE.xml` wrote (the name ends in .xml), or a description in
// hwloc's words, "package:2 numa:1 l3:2 core:4 pu:2". No quota; what the file says about masks is
// not looked at. Error(kInvalid) when hwloc does not understand it.
Topology load_topology(const std::string& description);

// `topology` with only these of its cpus given. Error(kInvalid) when none is left. Requires:
// ascending.
Topology restrict_topology(const Topology& topology, const std::vector<int>& cpus);

// A set of cpus as the kernel and taskset write it: "0-3,8". Requires: ascending.
std::string format_cpu_list(const std::vector<int>& cpus);

// The cpus of such a text, ascending, each once. Nothing when the text is not such a list, or names
// a cpu above 65535.
std::optional<std::vector<int>> parse_cpu_list(const std::string& text);

}  // namespace paceline
