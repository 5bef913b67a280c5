#pragma once

// The search for a pipeline's plan: layers cut into stages, plans by list scheduling, and the best
// of both with the named schedules.
//
// Thread safety: pure functions.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "paceline/planning/schedules/simulate.h"

namespace paceline::pipeline {

// How many layers each stage has, one after the other, at least one: the most expensive stage costs
// as little as possible, and among such cuts the stages are as even as possible. Takes time in
// proportion to stages x layers^2. Error(kInvalid) for fewer layers than stages, no stages, and
// costs that are negative or not finite.
std::vector<int> split_by_cost(const std::vector<double>& costs, int num_stages);

// The same for ranks that have several stages (plan.h). Minimises the load of the busiest rank,
// then the most expensive stage: a local search that starts from the cut above and moves single
// layers over stage boundaries, so that its result is not always the optimum. Takes time in
// proportion to stages^3 for each step.
std::vector<int> split_by_cost(const std::vector<double>& costs,
                               const std::vector<int>& rank_of_stage);

// The most bytes that each rank may keep between actions; none: any number.
struct MemoryLimits {
  std::vector<double> bytes_of_rank = {};
};

enum class StageOrder {
  kDeepFirst,   // of a rank's stages the last one, so that micro-batches leave early
  kBroadFirst,  // the first one
  kByRound,     // in rounds of as many micro-batches as there are ranks, as in interleaved 1F1B
};

struct ListPolicy {
  // Micro-batches from this one on have backward passes in two halves; those before, whole ones.
  int split_from = 0;
  // How many micro-batches a rank has under way at most (each of its stages counts), beyond those
  // that 1F1B has; none: as many as memory allows.
  std::optional<int> more_in_flight = {};
  // A weight's gradient may begin although a more urgent action becomes ready meanwhile, if that
  // one waits for at most this share of the gradient's time.
  double weight_slack = 0;
  bool forward_first = false;  // before a backward pass that is ready as well
  StageOrder order = StageOrder::kDeepFirst;
};

// List scheduling: whichever rank can begin first takes, of the actions that are ready for it, the
// one that comes first by the policy. Returns nothing when the choices end where no rank can go on
// within the limits.
std::optional<Plan> list_schedule(const std::vector<int>& rank_of_stage, int num_micro_batches,
                                  const Costs& costs, const MemoryLimits& limits,
                                  const ListPolicy& policy);

// The best plan that can be found for measured costs and given memory. It starts from the named
// schedules and from plans made by list scheduling under many policies (list_schedule()), then
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

// Looped layouts with 1 to `most_stages_per_rank` stages a rank and the V layout, as far as there
// are enough layers. Error(kInvalid) for fewer layers than ranks, and numbers below 1.
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
