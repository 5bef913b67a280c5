#pragma once

// How long the calling thread takes for something, beside others that take turns with it on the
// same cores: the time in which it was ready to run and had no core does not count. What it waits
// for otherwise does, and so does what it takes longer because others have had its caches.
//
// Linux tells it (/proc/thread-self/schedstat); where it does not, all time counts.
//
// Thread safety: used by the thread that made it.

#include <chrono>

namespace paceline {

class RunningTimer {
 public:
  RunningTimer();

  double seconds() const;       // since it was made, without waiting for a core
  double wall_seconds() const;  // since it was made

 private:
  const std::chrono::steady_clock::time_point begin_;
  const double waited_;
};

}  // namespace paceline
