#pragma once

// The launcher's working process on one node: starts the ranks of each generation (generation.h) as
// the job's coordinator orders (launcher/coordination/coordinator.h, which it may host itself),
// reports what becomes of them, and stays until the job is over. One thread, one event loop over
// the ranks, the other agents and the supervisor's control pipe. It never polls and never blocks on
// a reader of its output.

#include "paceline/launcher/job/launch_options.h"
#include "paceline/launcher/process/supervisor.h"

namespace paceline::launcher {

// The exit code of the job: 0, the last culprit's (128 + N for a signal), or 128 + N when signal N
// ended the launcher. Error(kInvalid), Error(kTimeout), Error(kSystem) when the nodes do not meet.
int run_agent(const LaunchPlan& plan, AgentChannel channel);

}  // namespace paceline::launcher
