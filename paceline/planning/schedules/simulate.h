#pragma once

// Predicts the time, the bubbles and the memory of every rank of a schedule from the costs of each
// stage, without running it.
//
// The model. A rank carries out one action at a time, in the schedule's order. An output (or a
// gradient) arrives at the rank of the neighbouring stage `transfer_s` after it was made, or at
// once if both stages are on one rank. Transfers take no processor time and do not wait for each
// other. Memory counts the bytes that stages keep between their actions; a message that has arrived
// early is not counted.
//
// Thread safety: pure functions.

#include <optional>
#include <string>
#include <vector>

#include "paceline/planning/schedules/pipeline_schedule.h"

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

// "1f1b: 0.123 s, bubble 27.3%, peak memory 1.2e+06 bytes on rank 0".
std::string describe(const PipelineSchedule& schedule, const TimedSchedule& timed);

}  // namespace paceline::pipeline
