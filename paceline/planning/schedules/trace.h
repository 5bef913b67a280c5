#pragma once

// A plan's step beside the measured one, for Perfetto (https://ui.perfetto.dev) and
// chrome://tracing: Chrome's trace format in JSON. "planned" and "measured" are processes, ranks
// their threads; both begin at 0.
//
// Thread safety: a pure function.

#include <string>

#include "paceline/planning/schedules/picture.h"

namespace paceline::pipeline {

// Error(kInvalid) for a step without ranks.
std::string to_trace(const Picture& picture);

}  // namespace paceline::pipeline
