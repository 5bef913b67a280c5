#pragma once

// The time of things that are only recorded. Deadlines use Deadline.
//
// Where the kernel itself keeps time by the processor's time-stamp counter, a reading is one of
// that counter, scaled as the last two looks at the kernel's clock say, of which the last is at
// most a millisecond old: half of the cost of CLOCK_MONOTONIC. Elsewhere it is CLOCK_MONOTONIC.
//
// Thread safety: any thread may call. It never steps back within a thread; between threads it
// agrees to about a microsecond.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace paceline {

// Nanoseconds, as CLOCK_MONOTONIC counts them.
std::uint64_t record_time() noexcept;

// How long the calling thread takes for something, beside others that take turns with it on the
// same cores: the time in which it was ready to run and had no core does not count. What it waits
// for otherwise does, and so does what it takes longer because others have had its caches.
//
// Linux tells it (/proc/thread-self/schedstat); where it does not, all time counts.
//
// Thread safety: used by the thread that made it.

class RunningTimer {
 public:
  RunningTimer();

  double seconds() const;       // since it was made, without waiting for a core
  double wall_seconds() const;  // since it was made

 private:
  const std::chrono::steady_clock::time_point begin_;
  const double waited_;
};

// The middle one of some values: of times it does not see what else the machine did meanwhile.

// The upper one of an even number. Requires: a value.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace paceline
