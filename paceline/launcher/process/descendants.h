#pragma once

// Ends every descendant of this process, whatever group or session it moved to, and nothing else.
// The process must be a "child subreaper": orphans of its descendants then become its own children.
// Only own children are ever signalled, and the pid of an own child cannot be given to another
// process before it is waited for, so no unrelated process can be hit.

#include <vector>

#include <sys/types.h>

#include "paceline/engine/core/deadline.h"

namespace paceline::launcher {

// From now on orphaned descendants become children of this process.
void adopt_orphans();

// SIGKILL to all children but `spared`, then to what they leave behind, until none of those is
// left. False when some still live at the deadline (stuck in the kernel). A connection that the
// user's ssh sessions share lives on: the master that an ssh among the descendants left behind.
bool end_all_descendants(Deadline deadline, const std::vector<pid_t>& spared = {});

// Waits until all descendants have ended by themselves. False when some still live at the deadline.
bool await_all_descendants(Deadline deadline);

}  // namespace paceline::launcher
