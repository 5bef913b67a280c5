#pragma once

// Starts the ranks of this node and stays until they have ended: one thread, one epoll over the
// ranks' pidfds, their output and the supervisor's control pipe. It never polls and never blocks on
// a reader of its output.
//
// The first rank that really ends badly is the culprit: it is reported at once, the others get
// SIGTERM, then SIGKILL after a grace time. epoll hands out what became ready in the order in which
// it did, so the order of deaths is the real one even when several come at once.

#include <string>

#include "paceline/launch/launch_options.h"
#include "paceline/launch/placement.h"
#include "paceline/launch/supervisor.h"

namespace paceline::launch {

struct LaunchPlan {
  LaunchOptions options;
  std::string program_path;  // options.command[0], found
  Placement placement;
};

// The exit code of the job: 0, the culprit's (128 + N for a signal), or 128 + N when signal N ended
// the launcher.
int run_agent(const LaunchPlan& plan, AgentChannel channel);

}  // namespace paceline::launch
