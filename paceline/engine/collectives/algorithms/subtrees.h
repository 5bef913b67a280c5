#pragma once

// Which parts of the promised tree over all ranks (kernels/reduce.h) lie on one host or package:
// what can be added up there by itself without a change of the sum's bits. Thread safety: pure.

#include <vector>

#include "paceline/engine/collectives/algorithms/schedule.h"

namespace paceline {

// A whole subtree: first rank and number of ranks.
struct Subtree {
  int first = 0;
  int num_ranks = 0;
  bool operator==(const Subtree&) const = default;
};

// The largest whole subtrees that make up the ranks of each host, in rank order.
std::vector<std::vector<Subtree>> subtrees_by_host(const Hosts& hosts);

// The ranks of each host where every host is one whole subtree, all of the same size and in the
// order of the ranks; 0 otherwise. A power of two, unless there is one host. Takes what
// subtrees_by_host() gives.
int ranks_of_equal_subtrees(const std::vector<std::vector<Subtree>>& by_host);

}  // namespace paceline
