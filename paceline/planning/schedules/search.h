#pragma once

// The search for a pipeline's schedule: cuts layers into stages, makes schedules by list
// scheduling, and improves the best schedules among these and the named ones.
//
// Thread safety: pure functions.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "paceline/planning/schedules/simulate.h"

namespace paceline::pipeline {

// Cuts a chain of layers into `num_stages` stages, and returns the number of layers in each stage,
// at least 1. `costs`: the cost of each layer. The most expensive stage costs as little as
// possible; among such cuts, the function chooses the most even one. Its time is proportional to
// stages x layers^2. Throws Error(kInvalid) if there are no stages or fewer layers than stages, or
// if a cost is negative or not finite.
std::vector<int> split_by_cost(const std::vector<double>& costs, int num_stages);

// As above, but a rank may have several stages: `rank_of_stage` is the rank of each stage
// (PipelineSchedule). Minimises the load of the busiest rank, then the cost of the most expensive
// stage. A local search starts from the cut above and moves single layers over stage boundaries, so
// the result is not always the optimum. Each step of the search takes time proportional to
// stages^3.
std::vector<int> split_by_cost(const std::vector<double>& costs,
                               const std::vector<int>& rank_of_stage);

// The most bytes that each rank may keep between actions. If empty, memory is not limited.
struct MemoryLimits {
  std::vector<double> bytes_of_rank = {};
};

// The stage that a rank prefers if passes of the same kind could begin on several of its stages at
// the same time.
enum class StageOrder {
  // The last stage in forward passes and the first one in backward passes, so that micro-batches
  // leave the rank early.
  kDrainFirst,
  kFillFirst,  // the opposite of kDrainFirst
  kByRound,    // kFillFirst in rounds of num_ranks micro-batches, as in interleaved 1F1B
};

// The rules by which list_schedule() chooses actions.
struct ListPolicy {
  // Backward passes are split into two halves from this micro-batch on; earlier ones are whole.
  int split_from = 0;
  // The number of micro-batches that a rank may have in flight beyond those of 1F1B. A micro-batch
  // counts once for each stage of the rank that holds it. If nullopt, only memory limits the
  // number.
  std::optional<int> more_in_flight = {};
  // A rank may begin a weight gradient although a forward or backward pass becomes ready before the
  // gradient is complete, if that pass then waits for at most this share of the gradient's time.
  double weight_slack = 0;
  bool forward_first = false;  // prefers a forward pass to a backward pass that is also ready
  StageOrder order = StageOrder::kDrainFirst;
};

// Makes a schedule by list scheduling: in each round, the rank that can begin an action earliest
// takes the action that the policy prefers. Returns nullopt if the policy leads to a state in which
// no rank can continue within the limits.
std::optional<PipelineSchedule> list_schedule(const std::vector<int>& rank_of_stage,
                                              int num_micro_batches, const Costs& costs,
                                              const MemoryLimits& limits, const ListPolicy& policy);

// Options of search_schedule() and search_divisions().
struct SearchOptions {
  MemoryLimits limits = {};
  bool may_split_backward = true;  // false: backward passes stay whole
  // The number of changes that the search tries on each schedule that it improves. A trial takes
  // about 10 microseconds with 4 stages and 16 micro-batches; its time is proportional to their
  // product.
  int num_trials = 4000;
  std::uint64_t seed = 1;  // of the random choice of changes
};

// A named schedule with its simulated step.
struct SearchCandidate {
  std::string name;
  double seconds = 0;
  double peak_bytes = 0;  // of the rank with the highest peak
  bool fits = true;       // within the memory limits
};

struct SearchResult {
  PipelineSchedule schedule;  // named "searched", or a named schedule that was not improved
  TimedSchedule timed;        // its simulated step
  double lower_bound_s = 0;   // no schedule has a shorter step than this
  std::vector<SearchCandidate> named;  // the named schedules that the layout allows
};

// Searches for the fastest schedule of a layout, `rank_of_stage`, for measured costs and given
// memory. The search starts from the named schedules and from those that list_schedule() makes with
// many policies. Then it improves the best ones: it moves an action by a few places, splits a
// backward pass into halves or joins the halves again, and keeps the change unless the simulated
// step takes longer, or equally long with more work. Measurements cannot distinguish schedules
// within a percent of the fastest; among these, the search chooses the one with the least memory,
// but never one that is slower than the best named schedule that fits into memory.
//
// The same arguments give the same schedule on every rank and machine. A better schedule may exist;
// `lower_bound_s` limits how much faster it can be.
//
// Throws Error(kInvalid) if the costs or limits do not match the layout, or if no schedule fits
// into memory. If a rank has less memory than one micro-batch on each of its stages needs, the
// message names the rank and these bytes.
SearchResult search_schedule(const std::vector<int>& rank_of_stage, int num_micro_batches,
                             const Costs& costs, const SearchOptions& options = {});

// A chain of layers that is cut into stages, and the layout of these stages.
struct Division {
  std::vector<int> rank_of_stage;  // the rank of each stage
  std::vector<int> layers = {};    // the number of layers in each stage
  Costs costs = {};                // the costs of each stage
};

// Returns the looped layouts with 1 to `most_stages_per_rank` stages per rank and, for at least 2
// ranks and 2 stages per rank, the V layout, but no layout with more stages than layers. Throws
// Error(kInvalid) if there are fewer layers than ranks, or if a number is below 1.
std::vector<std::vector<int>> possible_layouts(int num_ranks, int num_layers,
                                               int most_stages_per_rank = 4);

struct DivisionSearch {
  std::size_t division = 0;    // index of the chosen division
  SearchResult found;          // the result for that division
  SearchCandidate best_named;  // of all divisions; `fits` is false if none fits
};

// Finds the division and the schedule with the shortest step: searches as search_schedule() does,
// but improves only the schedules of the best divisions. Among divisions whose step is within a
// percent of the shortest, the function chooses the one with the fewest stages, but never one that
// is slower than the best named schedule of any division. Throws Error(kInvalid) if there are no
// divisions; if no schedule of any division fits into memory, throws the error of the first one.
DivisionSearch search_divisions(const std::vector<Division>& divisions, int num_micro_batches,
                                const SearchOptions& options = {});

}  // namespace paceline::pipeline
