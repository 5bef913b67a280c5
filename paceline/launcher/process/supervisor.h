#pragma once

// The supervisor is the process that the user started. When it dies, no process of the job may be
// left. It forks the agent, which starts the ranks; afterwards it only waits, and passes on signals
// and the input of a terminal. The supervisor and the agent watch each other:
//
//   paceline run (supervisor) ── paceline run (agent) ─┬─ rank 0 ── its children
//                                                      └─ rank 1 ── ...
//
// After kill -9 of the supervisor the agent finds its control pipe closed and ends all its
// descendants. After kill -9 of the agent the kernel kills the ranks (each has asked for that),
// their orphans become children of the supervisor, and the supervisor ends them. No lists of pids
// are kept.
//
// The agent is in a process group of its own, so a Ctrl-C reaches the supervisor alone and is
// passed on exactly once. A Ctrl-Z is passed on in the same manner: the agent stops the ranks, but
// continues itself, to answer processes that ask about the job; then the supervisor stops. When the
// supervisor is continued, so are the ranks.

#include <functional>
#include <optional>

#include "paceline/engine/core/system/fd.h"

namespace paceline::launcher {

// The agent's end of its connection to the supervisor.
struct AgentChannel {
  Fd control;   // one byte for each signal that the agent must handle
  Fd stdin_fd;  // the input of rank 0

  // Call when `control` is readable. The next signal; 0: the supervisor has ended; nullopt: none.
  std::optional<int> next_signal() const;
};

// Runs `agent` in the child and returns its exit code, or 128 + N when signal N killed it. Does not
// return when a signal to this process ended the job: then the same signal ends this process too
// (process.h). Requires: no other threads.
int run_supervised(const std::function<int(AgentChannel)>& agent);

}  // namespace paceline::launcher
