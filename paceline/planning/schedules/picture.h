#pragma once

// A plan's step beside the measured one, drawn as a picture (SVG) and as a trace for viewers.
//
// Thread safety: pure functions.

#include <string>

#include "paceline/planning/schedules/simulate.h"

namespace paceline::pipeline {

struct Picture {
  std::string title;
  TimedPlan planned;
  TimedPlan measured = {};  // without ranks: none
};

// A plan's step as a picture (SVG): a row for each rank, a box for each action with its micro-batch
// in it, empty where the rank waits; below it, where there is one, the measured step on the same
// scale, and an axis of milliseconds. The file needs no other and runs no script; a box's text
// appears when the mouse rests on it. Error(kInvalid) for a step without ranks or of no time.
std::string to_svg(const Picture& picture);

// A plan's step beside the measured one, for Perfetto (https://ui.perfetto.dev) and
// chrome://tracing: Chrome's trace format in JSON. "planned" and "measured" are processes, ranks
// their threads; both begin at 0.
//
// Thread safety: a pure function.

// Error(kInvalid) for a step without ranks.
std::string to_trace(const Picture& picture);

}  // namespace paceline::pipeline
