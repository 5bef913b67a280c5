#pragma once

// What a plan costs: time, bubbles and memory of every rank, from what each stage costs. Nothing
// runs.
//
// The model. A rank carries out one action at a time, in the plan's order. An output (or a
// gradient) arrives at the neighbouring stage's rank `transfer_s` after it was made, at once where
// both stages are on one rank; transfers take no processor time and do not wait for each other.
// Memory is what stages keep between their actions: a message that has arrived early is not
// counted.
//
// Thread safety: pure functions.

#include <optional>
#include <string>
#include <vector>

#include "paceline/planning/schedules/plan.h"

namespace paceline::pipeline {

// The costs of one micro-batch on one stage.
struct StageCosts {
  double forward_s = 1;
  double input_gradient_s = 1;
  double weight_gradient_s = 1;
  std::optional<double> backward_s = {};  // both gradients at once; the sum when not given
  double activation_bytes = 1;            // kept from the forward pass to the backward pass
  double deferred_bytes = 1;              // kept from the input's gradient to the weights'
  double transfer_s = 0;  // of its output to the next stage, and of the gradient back
};

struct Costs {
  std::vector<StageCosts> stages;
};

// `num_stages` alike.
Costs equal_costs(int num_stages, const StageCosts& each = {});

struct TimedAction {
  Action action;
  double begin_s = 0;
  double end_s = 0;
};

// A step as it was simulated, or as it was measured.
struct TimedPlan {
  std::vector<std::vector<TimedAction>> ranks;
  double seconds = 0;  // from the first beginning to the last end
  std::vector<double> busy_s;
  std::vector<double> peak_bytes;  // empty when measured

  // The share of all ranks' time in which they wait, 0 to 1.
  double bubble_share() const;
};

// Error(kInvalid) unless there are costs of every stage, none of them negative or not finite.
void require_costs(const Costs& costs, int num_stages);

// Error(kInvalid) as validate() and require_costs().
TimedPlan simulate(const Plan& plan, const Costs& costs);

// "1f1b: 0.123 s, bubble 27.3%, peak memory 1.2e+06 bytes on rank 0".
std::string describe(const Plan& plan, const TimedPlan& timed);

// Runs the actions of all ranks in virtual time (simulate.h has the model): what simulate(),
// validate() and the search have in common. Made once for a layout and its costs, it times many
// orders without allocating memory, a few dozen nanoseconds an action.
//
// Thread safety: none.
class PlanClock {
 public:
  // Requires: a rank and costs for each stage.
  PlanClock(std::vector<int> rank_of_stage, int num_micro_batches, Costs costs);

  // False when a rank would wait forever; position(rank) is then where each rank stands. Requires:
  // stages and micro-batches within range, stages on their ranks.
  bool run(const std::vector<std::vector<Action>>& ranks);

  double seconds() const { return seconds_; }
  const std::vector<double>& busy_s() const { return busy_; }
  const std::vector<double>& peak_bytes() const { return peak_; }
  // When each action of the last run() began and ended. Requires: that run() ended.
  std::vector<std::vector<TimedAction>> timed(const std::vector<std::vector<Action>>& ranks) const;
  std::size_t position(int rank) const { return position_[static_cast<std::size_t>(rank)]; }
  // What the action waits for that has not been carried out.
  std::optional<Action> missing(const Action& action) const;

  double duration(const Action& action) const;
  // By how much the action changes what its rank keeps.
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
  std::vector<double> forward_end_, input_end_;  // by place(); kNever: not yet
  std::vector<std::size_t> position_;
  std::vector<double> free_at_, busy_, kept_, peak_;
  std::vector<std::vector<double>> begin_;
  std::vector<std::size_t> to_try_;
  double seconds_ = 0;
};

}  // namespace paceline::pipeline
