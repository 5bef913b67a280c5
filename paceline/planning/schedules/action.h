#pragma once

// What a rank of a pipeline does next: one step of one micro-batch on one stage. Its text is that
// of PyTorch's schedules: "2F0" is the forward pass of micro-batch 0 on stage 2, "2B0" its whole
// backward pass, "2I0" only the gradient of the stage's input, "2W0" only those of its weights.
//
// Thread safety: values.

#include <cstdint>
#include <string>
#include <string_view>

namespace paceline::pipeline {

enum class ActionKind : std::uint8_t { kForward, kBackward, kInputGradient, kWeightGradient };

// 'F', 'B', 'I' or 'W'.
char letter_of(ActionKind kind);

struct Action {
  ActionKind kind = ActionKind::kForward;
  int stage = 0;
  int micro_batch = 0;

  // Whether it makes the gradient that the stage before waits for.
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
// Error(kInvalid) for anything else.
Action parse_action(std::string_view text);

}  // namespace paceline::pipeline
