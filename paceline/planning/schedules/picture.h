#pragma once

// Draws a pipeline's planned and measured step as a picture (SVG) and as a trace for viewers.
//
// Thread safety: pure functions.

#include <string>

#include "paceline/planning/schedules/simulate.h"

namespace paceline::pipeline {

struct Picture {
  std::string title;
  TimedSchedule planned;
  TimedSchedule measured = {};  // no ranks: not measured
};

// Draws the planned step as a picture (SVG): a row for each rank, and a box with the micro-batch
// for each action; a rank that waits has no box. Below it are the measured step, if there is one,
// on the same scale, and an axis of milliseconds. The file needs no other file and runs no script;
// a box's tooltip shows its action and times. Throws Error(kInvalid) if the planned step has no
// ranks, or if neither step takes any time.
std::string to_svg(const Picture& picture);

// Writes both steps as a trace for Perfetto (https://ui.perfetto.dev) and chrome://tracing, in
// Chrome's JSON trace format. "planned" and "measured" appear as processes, ranks as their threads;
// both steps begin at 0. Throws Error(kInvalid) if the planned step has no ranks.
std::string to_trace(const Picture& picture);

}  // namespace paceline::pipeline
