#pragma once

// Ends every descendant of this process, whatever group or session it moved to, and nothing else.
// The process must be a "child subreaper": orphans of its descendants then become its own children.
// Only own children are ever signalled, and the pid of an own child cannot be given to another
// process before it is waited for, so no unrelated process can be hit.

#include <functional>
#include <vector>

#include <sys/types.h>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/launcher/process/event_loop.h"

namespace paceline::launcher {

// From now on orphaned descendants become children of this process.
void adopt_orphans();

// SIGKILL to all children but `spared`, then to what they leave behind, until none of those is
// left. False when some still live at the deadline (stuck in the kernel). A connection that the
// user's ssh sessions share lives on: the master that an ssh among the descendants left behind.
bool end_all_descendants(Deadline deadline, const std::vector<pid_t>& spared = {});

// Waits until all descendants have ended by themselves. False when some still live at the deadline.
bool await_all_descendants(Deadline deadline);

// The orphans of ranks, which become children of this process (descendants.h) and are waited for as
// they end. A rank itself is left to its owner, which keeps the order of deaths.
//
// Thread safety: none.

class Orphans {
 public:
  // `loop` must outlive it. Error(kSystem).
  explicit Orphans(EventLoop& loop);
  Orphans(const Orphans&) = delete;
  Orphans& operator=(const Orphans&) = delete;

  // A child may have ended since the last call.
  bool may_wait();
  // Waits for all that have ended, up to a child that `is_owned` by code that has yet to see its
  // end; then may_wait() again.
  void reap(const std::function<bool(pid_t pid)>& is_owned);

 private:
  Fd ends_;  // SIGCHLD
  bool may_wait_ = false;
};

}  // namespace paceline::launcher
