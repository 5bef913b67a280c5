#pragma once

// The process that the user started, and whose death must leave nothing behind. It forks the agent,
// which does the launching, and then only passes signals (and a terminal's input) on and waits. The
// two watch each other:
//
//   paceline run (supervisor) ── paceline run (agent) ─┬─ rank 0 ── its children
//                                                      └─ rank 1 ── ...
//
// kill -9 of the supervisor: the agent's control pipe ends, and it ends all its descendants. kill
// -9 of the agent: the kernel kills the ranks (each asked for that), what they leave becomes the
// supervisor's child, and it ends it. No lists of pids are kept.
//
// The agent is in a process group of its own, so a Ctrl-C reaches the supervisor alone and is
// passed on exactly once. So does a Ctrl-Z: the agent stops the ranks and itself goes on, for
// processes that ask about the job, then the supervisor stops; what continues it continues the
// ranks.

#include <functional>

#include "paceline/engine/core/system/fd.h"

namespace paceline::launcher {

// The agent's end.
struct AgentChannel {
  Fd control;   // one byte per signal to act on (SIGTSTP, SIGCONT: for the ranks); its end means
                // that the supervisor is gone
  Fd stdin_fd;  // what rank 0 reads
};

// Runs `agent` in the child and returns its exit code, or 128 + N when signal N killed it. Does not
// return when a signal to this process ended the job: this process then dies of it as well
// (signal_end.h). Requires: no other threads.
int run_supervised(const std::function<int(AgentChannel)>& agent);

}  // namespace paceline::launcher
