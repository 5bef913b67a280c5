#pragma once

// Measuring time: timestamps for records, the running time of one thread, the median. Deadlines are
// in deadline.h.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace paceline {

// Nanoseconds for records, as CLOCK_MONOTONIC counts them. Where the kernel itself keeps time by
// the processor's time-stamp counter, a reading is one of that counter, scaled as the last two
// looks at the kernel's clock say, of which the last is at most a millisecond old: half of the cost
// of CLOCK_MONOTONIC. Elsewhere it is CLOCK_MONOTONIC.
//
// Thread safety: any thread may call. It never steps back within a thread; between threads it
// agrees to about a microsecond.
std::uint64_t record_time() noexcept;

// Wall-clock time of the calling thread minus the time it was runnable but waited for a core,
// because another process had it. Waiting for anything else counts, and so does the time lost
// because others have had its caches.
//
// From /proc/thread-self/schedstat; where Linux does not have it, all time counts.
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

// The median, the upper one of an even number of values. Of repeated timings it is not moved by a
// few that were disturbed. Requires: a value.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace paceline
