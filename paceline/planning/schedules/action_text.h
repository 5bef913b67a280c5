#pragma once

// Actions as text.
//
// Thread safety: pure functions.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/planning/schedules/pipeline_schedule.h"

namespace paceline::pipeline {

// The letter of a kind in texts: 'F', 'B', 'I' or 'W'.
char letter_of(Action::Kind kind);

// Parses the text of an action, such as "2F0". Throws Error(kInvalid) for any other text.
Action parse_action(std::string_view text);

}  // namespace paceline::pipeline
