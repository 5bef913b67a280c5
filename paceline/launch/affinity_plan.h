#pragma once

// Which cpus each local rank gets: contiguous runs of physical cores, hardware threads of a core
// kept together, NUMA nodes not crossed when the ranks divide evenly among them. With more ranks
// than cores nobody is bound: binding several ranks to one core would make them wait for each other
// while another core is idle.
//
// Pure: a topology and numbers in, sets out.

#include <optional>
#include <string>
#include <vector>

#include "paceline/core/topology.h"

namespace paceline::launch {

struct RankCpus {
  std::vector<int> cpus;  // ascending; what the rank may run on
  int num_cores = 0;      // physical cores that are its own; 0 when it shares all of them
  int num_threads = 1;    // computing threads it should start
  bool operator==(const RankCpus&) const = default;
};

struct AffinityPlan {
  std::vector<RankCpus> ranks;
  bool bind = false;            // set the affinity masks
  bool oversubscribed = false;  // ranks x threads exceed the cpus (or the cgroup's quota)
};

struct AffinityRequest {
  int num_local_ranks = 1;
  std::optional<int> threads_per_rank;  // instead of one per core
  bool bind = true;
};

// Requires: num_local_ranks >= 1, a topology with at least one core.
AffinityPlan plan_affinity(const Topology& topology, const AffinityRequest& request);

// "rank 3: cpus 4-7 (2 cores), 2 threads"
std::string describe_binding(int rank, const RankCpus& cpus, bool bound);

}  // namespace paceline::launch
