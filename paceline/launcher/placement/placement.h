#pragma once

// Where the local ranks run: the cpus, the memory and the number of threads of each rank, with the
// reasons.
//
//   core     every rank gets cores of its own (core_division.h); the hardware threads of a core
//            stay together and count as one computing thread
//   cache, numa, socket (a package)
//            every rank may use all cores of one or more such parts; ranks may share a part
//   none     no rank is bound
//   a map    every rank gets the set of cpus that the user gave
//
// With more ranks than cores, no rank has its own core: ranks bound to one core would wait for each
// other while another core is idle. Ranks share NUMA nodes; with one NUMA node, no rank is bound.
//
// Pure functions, which make a plan from a topology and a request.

#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/core/system/topology.h"

namespace paceline::launcher {

enum class BindTo { kCore, kCache, kNuma, kPackage, kNone, kMap };

// The word that --bind uses for this binding: "core", "cache", ...
const char* name_of(BindTo bind);

struct Binding {
  BindTo to = BindTo::kCore;
  std::vector<std::vector<int>> map;  // kMap: ascending cpus of each local rank
  bool operator==(const Binding&) const = default;
};

struct PlacementRequest {
  int num_local_ranks = 1;
  std::optional<int> threads_per_rank;  // if set, overrides one thread per core
  Binding binding;
};

struct RankPlacement {
  std::vector<int> cpus;        // cpus on which the rank may run, ascending
  int num_cores = 0;            // physical cores of its own; 0 if it shares its cores
  int num_threads = 1;          // computing threads it should start
  std::vector<int> numa_nodes;  // nodes for its memory; empty: any
  bool operator==(const RankPlacement&) const = default;
};

struct Placement {
  std::vector<RankPlacement> ranks;
  bool bound = false;                // affinity masks and memory policies are to be set
  bool oversubscribed = false;       // ranks x threads exceed the cpus (or the quota)
  std::vector<std::string> reasons;  // one sentence for each reason
};

// Error(kInvalid) for a map that does not have one set per rank or names cpus that were not given.
// Requires: num_local_ranks >= 1, a topology with at least one core.
Placement plan_placement(const Topology& topology, const PlacementRequest& request);

// The number of ranks for "--nproc-per-node auto": one for each core that is worth using, but not
// more than the cpu quota allows.
int automatic_ranks(const Topology& topology);

// A text such as "rank 3: cpus 4-7 (2 cores), NUMA node 0, 2 threads".
std::string describe_placement(int rank, const RankPlacement& placement, bool bound);

}  // namespace paceline::launcher
