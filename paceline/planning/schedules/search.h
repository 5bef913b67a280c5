#pragma once

// The search for a pipeline's schedule: it cuts layers into stages, makes schedules by list
// scheduling, and improves the best of these and of the named schedules.
//
// Thread safety: pure functions.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "paceline/planning/schedules/simulate.h"

namespace paceline::pipeline {

// Cuts consecutive layers into stages and returns the number of layers of each, at least one. The
// most expensive stage costs as little as possible, and among such cuts the stages are as even as
// possible. The time is proportional to stages x layers^2. Throws Error(kInvalid) for fewer layers
// than stages, for no stages, and for costs that are negative or not finite.
std::vector<int> split_by_cost(const std::vector<double>& costs, int num_stages);

// As above, for ranks with several stages (pipeline_schedule.h). Minimises the load of the busiest
// rank, then the most expensive stage: a local search that starts from the cut above and moves
// single layers over stage boundaries, so that its result is not always the optimum. The time of
// each step is proportional to stages^3.
std::vector<int> split_by_cost(const std::vector<double>& costs,
                               const std::vector<int>& rank_of_stage);

// The largest number of bytes that each rank may keep between actions; empty: no limit.
struct MemoryLimits {
  std::vector<double> bytes_of_rank = {};
};

enum class StageOrder {
  kDeepFirst,   // the last of a rank's stages first, so that micro-batches leave early
  kBroadFirst,  // the first of a rank's stages first
  kByRound,     // in rounds of as many micro-batches as there are ranks, as in interleaved 1F1B
};

struct ListPolicy {
  // From this micro-batch on backward passes are in two halves; before it they are whole.
  int split_from = 0;
  // How many more micro-batches than in 1F1B a rank may have in flight; a micro-batch counts once
  // for each stage of the rank that holds it. nullopt: as many as memory allows.
  std::optional<int> more_in_flight = {};
  // A weight's gradient may begin although a more urgent action becomes ready meanwhile, if the
  // urgent action waits for at most this share of the gradient's time.
  double weight_slack = 0;
  bool forward_first = false;  // prefer a forward pass to a backward pass that is also ready
  StageOrder order = StageOrder::kDeepFirst;
};

// List scheduling: the rank that can begin first takes the ready action that the policy ranks
// first. Returns nullopt when the choices lead to a state in which no rank can continue within the
// limits.
std::optional<PipelineSchedule> list_schedule(const std::vector<int>& rank_of_stage,
                                              int num_micro_batches, const Costs& costs,
                                              const MemoryLimits& limits, const ListPolicy& policy);

// Searches for the best schedule for measured costs and given memory. It starts from the named
// schedules and from schedules made by list scheduling under many policies (list_schedule()), then
// improves the best ones: it swaps an action with its neighbours, splits a backward pass into
// halves or joins them again, and keeps the change if the simulated step is not slower. Among
// schedules within a percent of the fastest, which measurements cannot distinguish, it chooses the
// one with the least memory; but its result is never slower than the best named schedule that fits
// into memory.
//
// A chain of layers can be cut into one stage or several for each rank, in several layouts;
// search_divisions() searches all of these.
//
// The same arguments give the same schedule on every rank and machine. A better schedule may exist;
// `lower_bound_s` limits how much faster it can be.
struct SearchOptions {
  MemoryLimits limits = {};
  bool may_split_backward = true;  // false: backward passes stay whole
  // The number of changes that are tried. Each takes about 10 microseconds with 4 stages and 16
  // micro-batches, and more in proportion to their product.
  int num_trials = 4000;
  std::uint64_t seed = 1;
};

struct SearchCandidate {
  std::string name;
  double seconds = 0;
  double peak_bytes = 0;  // of the rank with the highest peak
  bool fits = true;
};

struct SearchResult {
  PipelineSchedule schedule;  // named "searched", or a named schedule that was not improved
  TimedSchedule timed;
  // No schedule has a shorter step than this.
  double lower_bound_s = 0;
  std::vector<SearchCandidate> named;  // the schedules that the layout allows
};

// Searches for a schedule for a layout of stages (pipeline_schedule.h). Throws Error(kInvalid) for
// costs or limits that do not match the layout, and when no schedule fits into memory; the message
// then names the rank and the bytes that it needs at least.
SearchResult search_schedule(const std::vector<int>& rank_of_stage, int num_micro_batches,
                             const Costs& costs, const SearchOptions& options = {});

// Layers cut into stages.
struct Division {
  std::vector<int> rank_of_stage;
  std::vector<int> layers = {};  // layers of each stage
  Costs costs = {};              // costs of each stage
};

// Looped layouts with 1 to `most_stages_per_rank` stages per rank, and the V layout, except layouts
// with more stages than layers. Throws Error(kInvalid) for fewer layers than ranks, and for numbers
// below 1.
std::vector<std::vector<int>> possible_layouts(int num_ranks, int num_layers,
                                               int most_stages_per_rank = 4);

struct DivisionSearch {
  std::size_t division = 0;    // index of the chosen division
  SearchResult found;          // the result for that division
  SearchCandidate best_named;  // of all divisions; `fits` is false if none fits
};

// Finds the division and the schedule with the shortest step. Among divisions whose step is within
// a percent of the shortest, it chooses the one with the fewest stages, but never one that is
// slower than the best named schedule of any division. Only the best divisions are improved; for
// the others the search stops after its first schedules. Throws Error(kInvalid) for no divisions;
// if no schedule of any division fits into memory, it throws the error of the first division.
DivisionSearch search_divisions(const std::vector<Division>& divisions, int num_micro_batches,
                                const SearchOptions& options = {});

}  // namespace paceline::pipeline
