#pragma once

// A pipeline's schedule as data: actions, the schedule of actions for each rank, its text, and the
// checks that every schedule must pass.
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

enum class ActionKind : std::uint8_t { kForward, kBackward, kInputGradient, kWeightGradient };

struct Action {
  ActionKind kind = ActionKind::kForward;
  int stage = 0;
  int micro_batch = 0;

  // Whether the action makes the gradient for which the previous stage waits.
  bool makes_input_gradient() const {
    return kind == ActionKind::kBackward || kind == ActionKind::kInputGradient;
  }
  bool makes_weight_gradient() const {
    return kind == ActionKind::kBackward || kind == ActionKind::kWeightGradient;
  }
  bool operator==(const Action&) const = default;
};

// "2F0".
std::string to_string(const Action& action);

}  // namespace paceline::pipeline

namespace paceline {

// The actions that each rank carries out, in order. A schedule has no times: an action begins when
// the previous one on its rank has ended and its inputs have arrived. Pure functions make schedules
// (named_schedules.h, search.h), check them (validate()), time them (simulate.h) and draw them
// (picture.h); none of this needs LibTorch, ranks or data.
struct PipelineSchedule {
  std::string name;
  int num_micro_batches = 0;
  std::vector<int> rank_of_stage;                    // a rank may have several stages
  std::vector<std::vector<pipeline::Action>> ranks;  // each rank's actions, in order

  int num_stages() const { return static_cast<int>(rank_of_stage.size()); }
  int num_ranks() const { return static_cast<int>(ranks.size()); }
  bool operator==(const PipelineSchedule&) const = default;
};

}  // namespace paceline

namespace paceline::pipeline {

// Puts stage s on rank s % num_ranks. Throws Error(kInvalid) for numbers below 1.
std::vector<int> looped_layout(int num_ranks, int stages_per_rank);
// Gives rank r two stages, r and 2 * num_ranks - 1 - r, so that rank 0 has the first and the last
// stage.
std::vector<int> v_layout(int num_ranks);

// Writes a line for each rank, with actions separated by commas, as PyTorch writes its schedules.
std::string to_csv(const PipelineSchedule& schedule);
// Reads a schedule from such lines. Empty cells (PyTorch's bubbles) are skipped. A stage belongs to
// the rank whose line has its actions. Throws Error(kInvalid) for a cell that is not an action, and
// for a stage on two ranks or on none; validate() checks everything else.
PipelineSchedule schedule_from_csv(const std::string& text, const std::string& name = "custom");

// The rules of every schedule, checked before any rank runs it:
//
// - each micro-batch passes each stage once: a forward pass, and either a backward pass or both of
//   its halves;
// - each action is on the rank that has its stage;
// - no rank waits forever: neither for a later action in its own list nor, through other
//   ranks, for itself.
//
// Throws Error(kInvalid), which names the rank and the action.
void validate(const PipelineSchedule& schedule);

}  // namespace paceline::pipeline
