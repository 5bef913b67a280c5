#pragma once

// The threads, cpu time and memory of a rank's processes, and a look at a rank soon after its
// start: which of its threads are busy, and which BLAS it has loaded. A number of threads in a
// variable is only a wish; some libraries ignore it.

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

// The process first, then all its descendants.
std::vector<pid_t> family_of(pid_t pid);

// The memory of all these processes; counts pages that several of them share once.
std::uint64_t memory_of(const std::vector<pid_t>& processes);

// Cpu time of each thread of a process and its descendants, in clock ticks, by thread id. Empty
// when the process is gone.
using ThreadTimes = std::map<pid_t, long>;
ThreadTimes thread_times(pid_t pid);

// The threads that ran for at least a fiftieth of the `seconds` between two looks.
int busy_threads(const ThreadTimes& before, const ThreadTimes& after, double seconds);

// True for the path of the reference BLAS, which computes with one thread and without vector units.
bool is_reference_blas(const std::string& path);
// The reference BLAS's path when the process or one of its descendants has it loaded.
std::optional<std::string> loaded_reference_blas(pid_t pid);

// Looks at one rank a few seconds after its start, and once more later, for problems that show only
// then: a BLAS that computes with one slow thread, a library that starts more threads than it was
// told. Its timer belongs into the agent's loop.
//
// Cost: two or four looks at /proc, a millisecond each.
class RankWatch {
 public:
  // Error(kSystem) when no timer can be made.
  RankWatch(int rank, pid_t pid, RankPlacement placement);

  int timer() const { return timer_.get(); }
  // To be called when the timer is readable. Returns each warning once.
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
