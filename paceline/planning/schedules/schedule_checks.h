#pragma once

// The layouts of stages on ranks, the texts of actions and of a schedule, and the checks that every
// schedule must pass.
//
// Thread safety: pure functions.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/planning/schedules/pipeline_schedule.h"

namespace paceline::pipeline {

// Puts stage s on rank s % num_ranks. Throws Error(kInvalid) for numbers below 1.
std::vector<int> looped_layout(int num_ranks, int stages_per_rank);
// Gives rank r two stages, r and 2 * num_ranks - 1 - r, so that rank 0 has the first and the last
// stage.
std::vector<int> v_layout(int num_ranks);

// The text of an action, such as "2F0".
std::string to_string(const Action& action);
// Writes a line for each rank, with actions separated by commas, as PyTorch writes its schedules.
std::string to_csv(const PipelineSchedule& schedule);

// The rules of every schedule, checked before any rank runs it:
//
// - each micro-batch passes each stage once: a forward pass, and either a backward pass or both of
//   its halves;
// - each action is on the rank that has its stage;
// - no rank waits forever: neither for a later action in its own list, nor in a cycle of ranks that
//   wait for each other.
//
// Throws Error(kInvalid), which names the rank and the action.
void validate(const PipelineSchedule& schedule);

// The letter of a kind in texts: 'F', 'B', 'I' or 'W'.
char letter_of(Action::Kind kind);

// Parses the text of an action, such as "2F0". Throws Error(kInvalid) for any other text.
Action parse_action(std::string_view text);

}  // namespace paceline::pipeline
