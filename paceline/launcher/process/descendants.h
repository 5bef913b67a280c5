#pragma once

// The processes that this one started and those that they left behind: ends or awaits them all,
// whatever group or session they moved to, and waits for orphans as they end.
//
//   1. This process is a "child subreaper" (adopt_orphans), so each orphan among its descendants
//      becomes its own child.
//   2. It signals only its own children.
//   3. The kernel gives the pid of a child to no other process before its parent has waited for it.
//
// By 2 and 3 no unrelated process can be hit; by 1 no descendant can hide.

#include <functional>
#include <vector>

#include <sys/types.h>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/launcher/process/event_loop.h"

namespace paceline::launcher {

// From now on orphaned descendants become children of this process.
void adopt_orphans();

// Sends SIGKILL to all children but `spared`, then to the orphans that these leave, until none is
// left. False when some still live at the deadline (stuck in the kernel). Spares the master of a
// connection that the user's ssh sessions share, which an ssh among the descendants left behind.
bool end_all_descendants(Deadline deadline, const std::vector<pid_t>& spared = {});

// Waits until all descendants have ended by themselves. False when some still live at the deadline.
bool await_all_descendants(Deadline deadline);

// The children of a process, of all its threads, as the kernel lists them; none where it does not
// (CONFIG_PROC_CHILDREN).
std::vector<pid_t> children_of(pid_t pid);

// Waits for orphans of ranks as they end. A rank itself is left to its owner, which keeps the order
// of deaths.
//
// Thread safety: none.
class Orphans {
 public:
  // `loop` must outlive it. Error(kSystem).
  explicit Orphans(EventLoop& loop);
  Orphans(const Orphans&) = delete;
  Orphans& operator=(const Orphans&) = delete;

  // Whether a child may have ended since the last call.
  bool may_wait();
  // Waits for all that have ended, up to a child that `is_owned` by code which has yet to see its
  // end; then may_wait() is true again.
  void reap(const std::function<bool(pid_t pid)>& is_owned);

 private:
  Fd ends_;  // SIGCHLD
  bool may_wait_ = false;
};

}  // namespace paceline::launcher
