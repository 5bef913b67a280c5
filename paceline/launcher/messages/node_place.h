#pragma once

// Where the ranks of this node stand in the world of one generation of the job. A value.

#include <string>

#include "paceline/launcher/messages/roles.h"

namespace paceline::launcher {

struct NodePlace {
  int generation = 0;  // how often the ranks were started before: TORCHELASTIC_RESTART_COUNT
  int max_restarts = 0;
  int node_rank = 0;
  int num_nodes = 1;
  int first_rank = 0;  // of this node; the others follow
  int world_size = 1;
  Roles roles{};  // of all ranks; empty: they have none

  int rank_of(int local_rank) const { return first_rank + local_rank; }
  bool has_roles() const { return !roles.empty() && roles.front().name != kNoRole; }
  RankRole role_of(int rank) const {
    if (!roles.empty()) return launcher::role_of(roles, rank);
    return {.number = rank, .count = world_size};
  }
  // "trainer1", or "3".
  std::string short_name_of(int rank) const {
    return has_roles() ? role_of(rank).worker() : std::to_string(rank);
  }
  // "trainer1 (rank 3)", or "rank 3".
  std::string name_of(int rank) const {
    const std::string plain = "rank " + std::to_string(rank);
    return has_roles() ? role_of(rank).worker() + " (" + plain + ")" : plain;
  }
  bool operator==(const NodePlace&) const = default;
};

}  // namespace paceline::launcher
