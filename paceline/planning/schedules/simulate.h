#pragma once

// Predicts the time, the bubbles and the memory of every rank of a schedule from the costs of each
// stage, without running the schedule. ScheduleClock is the clock of this simulation; the search
// runs it for each schedule that it tries.
//
// The model. A rank carries out one action at a time, in the schedule's order. An output (or a
// gradient) arrives at the rank of the neighbouring stage `transfer_s` after it was made, or at
// once if both stages are on one rank. Transfers take no processor time and do not wait for each
// other. Memory counts the bytes that stages keep between their actions; a message that has arrived
// early is not counted.
//
// Thread safety: the functions are pure functions.

#include <optional>
#include <string>
#include <vector>

#include "paceline/planning/schedules/pipeline_schedule.h"
#include "paceline/planning/schedules/schedule_checks.h"

namespace paceline::pipeline {

// The costs of one micro-batch on one stage.
struct StageCosts {
  double forward_s = 1;
  double input_gradient_s = 1;
  double weight_gradient_s = 1;
  std::optional<double> backward_s = {};  // both gradients at once; by default their sum
  double activation_bytes = 1;            // kept from the forward pass to the backward pass
  double deferred_bytes = 1;  // kept from the input gradient's pass to the weight gradient's pass
  double transfer_s = 0;      // for its output to the next stage, and for the gradient back
};

struct Costs {
  std::vector<StageCosts> stages;
};

// The same costs for all `num_stages` stages.
Costs equal_costs(int num_stages, const StageCosts& each = {});

// A simulated or measured step.
struct TimedSchedule {
  std::vector<std::vector<TimedAction>> ranks;
  double seconds = 0;  // from the beginning of the first action to the end of the last
  std::vector<double> busy_s;
  std::vector<double> peak_bytes;  // of each rank; empty if measured

  // The share of the time of all ranks in which they wait, 0 to 1.
  double bubble_share() const;
};

// Throws Error(kInvalid) as validate() and require_costs() do.
TimedSchedule simulate(const PipelineSchedule& schedule, const Costs& costs);

// Returns, for instance, "1f1b: 0.123 s, bubble 27.3%, peak memory 1.2e+06 bytes on rank 0".
std::string describe(const PipelineSchedule& schedule, const TimedSchedule& timed);

// Throws Error(kInvalid) unless every stage has costs, all of them finite and not negative.
void require_costs(const Costs& costs, int num_stages);

// Runs the actions of all ranks in virtual time (the model is above), for simulate(), validate()
// and the search. A clock is made once for a layout and its costs; it then times many orders
// without allocating memory, at a few dozen nanoseconds per action.
//
// Thread safety: none.
class ScheduleClock {
 public:
  // Requires: each stage has a rank and costs.
  ScheduleClock(std::vector<int> rank_of_stage, int num_micro_batches, Costs costs);

  // Returns false if a rank would wait forever; position(rank) is then the number of actions that
  // it has carried out. Requires: the stage and the micro-batch of each action exist, and
  // `ranks[r]` contains only actions of rank r's stages.
  bool run(const std::vector<std::vector<Action>>& ranks);

  double seconds() const { return seconds_; }
  const std::vector<double>& busy_s() const { return busy_; }
  const std::vector<double>& peak_bytes() const { return peak_; }
  // When each action of the last run() began and ended. Requires: that run() returned true.
  std::vector<std::vector<TimedAction>> timed(const std::vector<std::vector<Action>>& ranks) const;
  std::size_t position(int rank) const { return position_[static_cast<std::size_t>(rank)]; }
  // The first action that `action` needs and that has not been carried out, if any.
  std::optional<Action> missing(const Action& action) const;

  double duration(const Action& action) const;
  // The number of bytes by which the action changes the memory that its rank keeps.
  double change_of_bytes(const Action& action) const;

 private:
  static constexpr double kNever = -1;

  std::size_t place(int stage, int micro_batch) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(num_micro_batches_) +
           static_cast<std::size_t>(micro_batch);
  }
  const StageCosts& costs_of(int stage) const {
    return costs_.stages[static_cast<std::size_t>(stage)];
  }
  double arrival(double end, int from, int to) const;
  double ready_at(const Action& action) const;
  void carry_out(std::size_t rank, const Action& action, double ready);

  const std::vector<int> rank_of_stage_;
  const int num_micro_batches_;
  const Costs costs_;
  std::vector<double> forward_end_, input_end_;  // indexed by place(); kNever: not yet
  std::vector<std::size_t> position_;
  std::vector<double> free_at_, busy_, kept_, peak_;
  std::vector<std::vector<double>> begin_;
  std::vector<std::size_t> to_try_;
  double seconds_ = 0;
};

}  // namespace paceline::pipeline
