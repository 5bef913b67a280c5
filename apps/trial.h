#pragma once

// Runs the user's program for a few seconds with one combination of ranks and threads, as
// `paceline run` would, and reads its step log (step_log.h).

#include <chrono>
#include <string>
#include <vector>

#include "paceline/engine/core/fd.h"
#include "paceline/launcher/placement/advice.h"

#include "apps/launcher_run.h"

namespace paceline::apps {

struct TrialOptions {
  std::vector<std::string> command;
  launcher::Combination combination;
  std::chrono::nanoseconds duration = std::chrono::seconds(5);   // of steps, after warming up
  std::chrono::nanoseconds patience = std::chrono::seconds(60);  // for the next step
  std::string folder;  // for logs; exists, and is removed by the caller
};

// `signals`: of block_ending_signals(); when one arrives the trial is stopped and Interrupted is
// thrown. What goes wrong with the program is in the trial's `problem`. Error(kSystem) when it
// cannot be started at all.
launcher::Trial run_trial(const TrialOptions& options, const Fd& signals);

}  // namespace paceline::apps
