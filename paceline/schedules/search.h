#pragma once

// The best plan that can be found for measured costs and given memory. It starts from the named
// schedules and from plans made by list scheduling under many policies (list_schedule.h), then
// improves the best ones: an action changes places with its neighbours, and stays there if the
// simulated step is not slower. So the result is never slower than the best named schedule that
// fits into memory.
//
// The same arguments give the same plan on every rank and machine. Nothing proves that there is no
// better one; `lower_bound_s` says how far it can be.
//
// Thread safety: pure functions.

#include <cstdint>
#include <string>
#include <vector>

#include "paceline/schedules/list_schedule.h"
#include "paceline/schedules/simulate.h"

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

}  // namespace paceline::pipeline
