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

// By the clock of `begin`.
template <class Clock, class Duration>
double seconds_since(std::chrono::time_point<Clock, Duration> begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Between two readings of record_time(); 0 if the second is the earlier one.
inline double seconds_between(std::uint64_t begin, std::uint64_t end) {
  return end > begin ? static_cast<double>(end - begin) * 1e-9 : 0;
}

// The median, the upper one of an even number of values. Of repeated timings it is not moved by a
// few that were disturbed. Requires: a value.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace paceline
