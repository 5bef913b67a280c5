#pragma once

// Where the local ranks run: cpus, memory and number of threads of each, with the reasons.
//
//   core     every rank gets cores of its own (core_division.h); the hardware threads of a core
//            stay together and count as one computing thread
//   cache, numa, socket (a package)
//            every rank may use the whole part or parts in which it is; ranks of one part share it
//   none     no rank is bound
//   a map    the user's sets
//
// With more ranks than cores no rank gets cores of its own: binding several ranks to one core would
// make them wait for each other while another is idle. They share their NUMA node.
//
// Pure: a topology and a request in, a plan out.

#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/core/system/topology.h"

namespace paceline::launcher {

enum class BindTo { kCore, kCache, kNuma, kPackage, kNone, kMap };

// "core", "cache", ...: as the option --bind spells it.
const char* name_of(BindTo bind);

struct Binding {
  BindTo to = BindTo::kCore;
  std::vector<std::vector<int>> map;  // kMap: ascending cpus of each local rank
  bool operator==(const Binding&) const = default;
};

struct PlacementRequest {
  int num_local_ranks = 1;
  std::optional<int> threads_per_rank;  // instead of one per core
  Binding binding;
};

struct RankPlacement {
  std::vector<int> cpus;        // on which the rank may run, ascending
  int num_cores = 0;            // physical cores that are its own; 0 when it shares them
  int num_threads = 1;          // computing threads it should start
  std::vector<int> numa_nodes;  // where its memory should lie; empty: no matter
  bool operator==(const RankPlacement&) const = default;
};

struct Placement {
  std::vector<RankPlacement> ranks;
  bool bound = false;                // set affinity masks and memory policies
  bool oversubscribed = false;       // ranks x threads exceed the cpus (or the quota)
  std::vector<std::string> reasons;  // a sentence each
};

// Error(kInvalid) for a map that does not have one set per rank or names cpus that were not given.
// Requires: num_local_ranks >= 1, a topology with at least one core.
Placement plan_placement(const Topology& topology, const PlacementRequest& request);

// The number of ranks of "--nproc-per-node auto": one for each core that is worth using, within the
// quota.
int automatic_ranks(const Topology& topology);

// "rank 3: cpus 4-7 (2 cores), NUMA node 0, 2 threads"
std::string describe_placement(int rank, const RankPlacement& placement, bool bound);

}  // namespace paceline::launcher
