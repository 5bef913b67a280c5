#pragma once

// Looks at one rank a few seconds after it started, and once more later, for what cannot be known
// before: a BLAS that computes with one slow thread, a library that starts more threads than it was
// told. Its timer belongs into the agent's epoll.
//
// Cost: two or four looks at /proc, a millisecond each.

#include <chrono>
#include <string>
#include <vector>

#include "paceline/engine/core/fd.h"
#include "paceline/launcher/diagnosis/thread_census.h"
#include "paceline/launcher/placement/placement_warnings.h"

namespace paceline::launcher {

class RankWatch {
 public:
  // Error(kSystem) when no timer can be made.
  RankWatch(int rank, pid_t pid, RankPlacement placement);

  int timer() const { return timer_.get(); }
  // Call when the timer is readable; what has to be said, if anything. Says each thing once.
  std::vector<Warning> look();

 private:
  void wait_for(std::chrono::nanoseconds time);
  std::vector<Warning> judge(int busy);

  const int rank_;
  const pid_t pid_;
  const RankPlacement placement_;
  Fd timer_;
  int num_looks_ = 0;
  ThreadTimes before_;
  std::chrono::steady_clock::time_point before_at_;
  bool said_blas_ = false, said_threads_ = false;
};

}  // namespace paceline::launcher
