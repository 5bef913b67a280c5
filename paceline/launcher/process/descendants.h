#pragma once

// The processes that this process started, and their descendants. The functions below end or await
// all of them, whatever process group or session they moved to, and reap orphans as they end.
//
//   1. This process is a "child subreaper" (adopt_orphans), so each orphan among its descendants
//      becomes its own child.
//   2. It signals only its own children.
//   3. The kernel gives the pid of a child to no other process before its parent has waited for it.
//
// By rules 2 and 3 no unrelated process can be signalled; by rule 1 no descendant can be missed.

#include <functional>
#include <vector>

#include <sys/types.h>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/launcher/process/event_loop.h"

namespace paceline::launcher {

// From now on orphaned descendants become children of this process.
void adopt_orphans();

// Sends SIGKILL to all children except `spared`, then to the orphans that they leave, until none is
// left. Returns false if some still live at the deadline (stuck in the kernel). Also spares the
// master process of a shared ssh connection (ControlPersist in ssh_config(5)): one of the
// descendants may have started it, but other sessions of the user share its connection.
bool end_all_descendants(Deadline deadline, const std::vector<pid_t>& spared = {});

// Waits until all descendants have ended by themselves. Returns false if some still live at the
// deadline.
bool await_all_descendants(Deadline deadline);

// The children of a process, started by any of its threads. Empty if the kernel does not list them
// (CONFIG_PROC_CHILDREN).
std::vector<pid_t> children_of(pid_t pid);

// Reaps the orphans of ranks as they end. Does not reap a rank itself: the rank's owner does that,
// and so sees the order in which ranks ended.
//
// Thread safety: none.
class Orphans {
 public:
  // `loop` must outlive the object. Error(kSystem).
  explicit Orphans(EventLoop& loop);
  Orphans(const Orphans&) = delete;
  Orphans& operator=(const Orphans&) = delete;

  // Whether a child may have ended since the last call.
  bool may_wait();
  // Reaps children that have ended, until the next one is a child for which `is_owned` is true: the
  // owner of that child must reap it first. may_wait() is then true again.
  void reap(const std::function<bool(pid_t pid)>& is_owned);

 private:
  Fd ends_;  // a signalfd for SIGCHLD
  bool may_wait_ = false;
};

}  // namespace paceline::launcher
