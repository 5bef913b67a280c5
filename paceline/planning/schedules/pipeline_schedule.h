#pragma once

// A pipeline's schedule as data: actions, and the schedule of actions for each rank.
//
// An action is one step of one micro-batch on one stage. Its text is that of PyTorch's schedules:
// "2F0" is the forward pass of micro-batch 0 on stage 2, "2B0" its whole backward pass, "2I0" only
// the gradient of the stage's input, "2W0" only those of its weights.
//
// Thread safety: values.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace paceline::pipeline {

struct Action {
  enum class Kind : std::uint8_t { kForward, kBackward, kInputGradient, kWeightGradient };

  Kind kind = Kind::kForward;
  int stage = 0;
  int micro_batch = 0;

  // Whether the action makes the gradient for which the previous stage waits.
  bool makes_input_gradient() const {
    return kind == Kind::kBackward || kind == Kind::kInputGradient;
  }
  bool makes_weight_gradient() const {
    return kind == Kind::kBackward || kind == Kind::kWeightGradient;
  }
  bool operator==(const Action&) const = default;
};

// When an action ran, or is planned to run, in seconds from the beginning of the step.
struct TimedAction {
  Action action;
  double begin_s = 0;
  double end_s = 0;
};

}  // namespace paceline::pipeline

namespace paceline {

// The actions that each rank carries out, in order. A schedule has no times: an action begins when
// the previous one on its rank has ended and its inputs have arrived. Pure functions make schedules
// (named_schedules.h), check them, time them and draw them; these functions need no LibTorch, ranks
// or data.
struct PipelineSchedule {
  std::string name;
  int num_micro_batches = 0;
  std::vector<int> rank_of_stage;                    // a rank may have several stages
  std::vector<std::vector<pipeline::Action>> ranks;  // each rank's actions, in order

  // Reads a schedule from a line for each rank, with actions separated by commas, as PyTorch writes
  // its schedules. Empty cells (PyTorch's bubbles) are skipped. A stage belongs to the rank whose
  // line has its actions. Throws Error(kInvalid) for a cell that is not an action, and for a stage
  // on two ranks or on none; Pipeline's constructor checks everything else.
  static PipelineSchedule from_csv(const std::string& text, const std::string& name = "custom");

  int num_stages() const { return static_cast<int>(rank_of_stage.size()); }
  int num_ranks() const { return static_cast<int>(ranks.size()); }
  bool operator==(const PipelineSchedule&) const = default;
};

}  // namespace paceline
