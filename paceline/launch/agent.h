#pragma once

// Starts the ranks of this node and stays until they have ended: one thread, one event loop over
// the ranks (generation.h) and the supervisor's control pipe. It never polls and never blocks on a
// reader of its output.

#include "paceline/launch/launch_plan.h"
#include "paceline/launch/supervisor.h"

namespace paceline::launch {

// The exit code of the job: 0, the culprit's (128 + N for a signal), or 128 + N when signal N ended
// the launcher.
int run_agent(const LaunchPlan& plan, AgentChannel channel);

}  // namespace paceline::launch
