#pragma once

// A pipeline's schedule as data: which actions each rank carries out, in order. It says nothing of
// times: an action begins when the one before it has ended on its rank and what it needs has
// arrived. Pure functions make plans (named_plans.h, search.h), check them (validate.h), time them
// (simulate.h) and draw them (picture.h); none of it needs LibTorch, ranks or data.
//
// Thread safety: values.

#include <string>
#include <vector>

#include "paceline/planning/schedules/action.h"

namespace paceline::pipeline {

struct Plan {
  std::string name;
  int num_micro_batches = 0;
  std::vector<int> rank_of_stage;          // a rank may have several stages
  std::vector<std::vector<Action>> ranks;  // each rank's actions, in order

  int num_stages() const { return static_cast<int>(rank_of_stage.size()); }
  int num_ranks() const { return static_cast<int>(ranks.size()); }
  bool operator==(const Plan&) const = default;
};

// Stage s on rank s % num_ranks. Error(kInvalid) for numbers below 1.
std::vector<int> looped_layout(int num_ranks, int stages_per_rank);
// Two stages a rank: r and 2 * num_ranks - 1 - r, so that rank 0 has the first and the last one.
std::vector<int> v_layout(int num_ranks);

// A line for each rank, actions separated by commas, as PyTorch writes its schedules.
std::string to_csv(const Plan& plan);
// The plan of such lines. Empty cells (PyTorch's bubbles) are passed over. A stage belongs to the
// rank whose line has its actions. Error(kInvalid) for a cell that is no action, for a stage on two
// ranks or on none. What else a plan must keep is validate()'s.
Plan plan_from_csv(const std::string& text, const std::string& name = "custom");

}  // namespace paceline::pipeline
