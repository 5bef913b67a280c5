#pragma once

// The supervisor is the process that the user started, and whose death must leave nothing behind.
// It forks the agent, which does the launching, and then only waits, and passes on signals and the
// input of a terminal. The two watch each other:
//
//   paceline run (supervisor) ── paceline run (agent) ─┬─ rank 0 ── its children
//                                                      └─ rank 1 ── ...
//
// kill -9 of the supervisor: the agent's control pipe ends, and it ends all its descendants. kill
// -9 of the agent: the kernel kills the ranks (each asked for that), their orphans become the
// supervisor's children, and it ends them. No lists of pids are kept.
//
// The agent is in a process group of its own, so a Ctrl-C reaches the supervisor alone and is
// passed on exactly once. So is a Ctrl-Z: the agent stops the ranks, but goes on itself to answer
// processes that ask about the job; then the supervisor stops. Whatever continues the supervisor
// continues the ranks.

#include <functional>
#include <optional>

#include "paceline/engine/core/system/fd.h"

namespace paceline::launcher {

// The agent's end.
struct AgentChannel {
  Fd control;   // one byte per signal to act on
  Fd stdin_fd;  // the input of rank 0

  // The next signal; nothing when none has come; 0: the supervisor is gone.
  std::optional<int> next_signal() const;
};

// Runs `agent` in the child and returns its exit code, or 128 + N when signal N killed it. Does not
// return when a signal to this process ended the job: this process then dies of it as well
// (process_end.h). Requires: no other threads.
int run_supervised(const std::function<int(AgentChannel)>& agent);

}  // namespace paceline::launcher
