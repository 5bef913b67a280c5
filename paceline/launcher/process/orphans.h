#pragma once

// The orphans of ranks, which become children of this process (descendants.h) and are waited for as
// they end. A rank itself is left to its owner, which keeps the order of deaths.
//
// Thread safety: none.

#include <functional>

#include <sys/types.h>

#include "paceline/engine/core/fd.h"
#include "paceline/launcher/process/event_loop.h"

namespace paceline::launcher {

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
