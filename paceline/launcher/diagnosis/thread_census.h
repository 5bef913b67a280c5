#pragma once

// The threads, cpu time and memory of a rank's processes, and a check of a rank soon after its
// start: how many of its threads are busy, and whether it has loaded a slow BLAS. The check is
// necessary because some libraries ignore variables that set the number of threads.

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "paceline/engine/core/system/fd.h"
#include "paceline/launcher/placement/placement_warnings.h"

namespace paceline::launcher {

// The process and all its descendants; the process comes first.
std::vector<pid_t> family_of(pid_t pid);

// The memory of all these processes together. A page that only they share counts once.
std::uint64_t memory_of(const std::vector<pid_t>& processes);

// Cpu time of each thread of a process and its descendants, in clock ticks, by thread id. Empty if
// the process has ended.
using ThreadTimes = std::map<pid_t, long>;
ThreadTimes thread_times(pid_t pid);

// The number of threads that ran for at least 2% of the `seconds` between two readings.
int busy_threads(const ThreadTimes& before, const ThreadTimes& after, double seconds);

// Whether `path` is a library file of the reference BLAS, which computes with one thread and
// without vector units.
bool is_reference_blas(const std::string& path);
// The path of the reference BLAS if the process or one of its descendants has loaded it.
std::optional<std::string> loaded_reference_blas(pid_t pid);

// Checks one rank a few seconds after its start, and once more later, for problems that cannot be
// found earlier: a BLAS that computes with one slow thread, or a library that uses more threads
// than it was told to. The agent's event loop watches the timer.
//
// Cost: four readings of /proc, a millisecond each.
class RankWatch {
 public:
  // Error(kSystem) when no timer can be made.
  RankWatch(int rank, pid_t pid, RankPlacement placement);

  int timer() const { return timer_.get(); }
  // Call this when the timer is readable. Returns each warning once.
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
