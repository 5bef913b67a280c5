#pragma once

// Where the ranks of this node stand in the world of one generation of the job. A value.

namespace paceline::launch {

struct NodePlace {
  int generation = 0;  // how often the ranks were started before: TORCHELASTIC_RESTART_COUNT
  int max_restarts = 0;
  int node_rank = 0;
  int num_nodes = 1;
  int first_rank = 0;  // of this node; the others follow
  int world_size = 1;

  int rank_of(int local_rank) const { return first_rank + local_rank; }
  bool operator==(const NodePlace&) const = default;
};

}  // namespace paceline::launch
