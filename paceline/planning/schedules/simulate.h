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

// Of one micro-batch on one stage.
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

}  // namespace paceline::pipeline
