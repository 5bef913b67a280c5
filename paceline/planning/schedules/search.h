#pragma once

// The best plan that can be found for measured costs and given memory. It starts from the named
// schedules and from plans made by list scheduling under many policies (list_schedule.h), then
// improves the best ones: an action changes places with its neighbours, a backward pass becomes two
// halves or these one again, and that stays if the simulated step is not slower. Of plans within a
// percent of the fastest, which measurements do not tell apart, it takes the one that keeps least;
// but its result is never slower than the best named schedule that fits into memory.
//
// A chain of layers can be cut into one stage or several for each rank, in several layouts;
// search_divisions() searches them all.
//
// The same arguments give the same plan on every rank and machine. Nothing proves that there is no
// better one; `lower_bound_s` says how far it can be.
//
// Thread safety: pure functions.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "paceline/planning/schedules/list_schedule.h"
#include "paceline/planning/schedules/simulate.h"

namespace paceline::pipeline {

struct SearchOptions {
  MemoryLimits limits = {};
  bool may_split_backward = true;  // false: no plan with the two gradients apart
  // Simulated changes for improvement: about 10 microseconds each with 4 stages and 16
  // micro-batches, more in proportion to their product.
  int num_trials = 4000;
  std::uint64_t seed = 1;
};

struct SearchCandidate {
  std::string name;
  double seconds = 0;
  double peak_bytes = 0;  // of the rank that has most
  bool fits = true;
};

struct SearchResult {
  Plan plan;  // named "searched", or as the named schedule that nothing improved
  TimedPlan timed;
  // A step takes at least this long, whatever the plan.
  double lower_bound_s = 0;
  std::vector<SearchCandidate> named;  // the schedules that the layout allows
};

// For a layout of stages (plan.h). Error(kInvalid) for costs or limits that do not belong to it,
// and when no plan fits into memory: it names the rank and the bytes that it needs at least.
SearchResult search_plan(const std::vector<int>& rank_of_stage, int num_micro_batches,
                         const Costs& costs, const SearchOptions& options = {});

// Layers cut into stages.
struct Division {
  std::vector<int> rank_of_stage;
  std::vector<int> layers = {};  // of each stage
  Costs costs = {};              // of each stage
};

// Looped ones with 1 stage a rank and more, and the V, as far as so many layers go round.
// Error(kInvalid) for fewer layers than ranks, and numbers below 1.
std::vector<std::vector<int>> possible_layouts(int num_ranks, int num_layers,
                                               int most_stages_per_rank = 4);

struct DivisionSearch {
  std::size_t division = 0;    // which of those that were given
  SearchResult found;          // for it
  SearchCandidate best_named;  // of all divisions; `fits` is false if none does
};

// The division and plan with the shortest step; of those within a percent of it that with the
// fewest stages, but never one slower than the best named schedule of any division. The best
// divisions are improved, the others only started from. Error(kInvalid) for no divisions; where no
// plan of any fits into memory, that of the first one.
DivisionSearch search_divisions(const std::vector<Division>& divisions, int num_micro_batches,
                                const SearchOptions& options = {});

}  // namespace paceline::pipeline
