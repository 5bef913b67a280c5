#pragma once

// Measuring time: timestamps for records, the running time of one thread, the median. Deadlines are
// in deadline.h.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace paceline {

// A timestamp for records, in nanoseconds of CLOCK_MONOTONIC. If the kernel keeps time by the
// processor's time-stamp counter, this function extrapolates the last two readings of the kernel's
// clock by that counter; the later reading is at most about a millisecond old. That costs half as
// much as a reading of CLOCK_MONOTONIC. Otherwise the function reads CLOCK_MONOTONIC.
//
// Thread safety: any thread may call it. The time never steps back within a thread; threads agree
// to about a microsecond.
std::uint64_t record_time() noexcept;

// Wall-clock time of the calling thread minus the time in which it was runnable but waited for a
// core that another thread used. Time spent waiting for anything else is included, and so is time
// lost to caches that other processes have filled.
//
// The source is /proc/thread-self/schedstat; if Linux lacks that file, nothing is subtracted.
//
// Thread safety: only the thread that made the timer may use it.
class RunningTimer {
 public:
  RunningTimer();

  double seconds() const;       // since construction, without waiting for a core
  double wall_seconds() const;  // since construction

 private:
  const std::chrono::steady_clock::time_point begin_;
  const double waited_;
};

// The time since `begin`, on the clock of `begin`.
template <class Clock, class Duration>
double seconds_since(std::chrono::time_point<Clock, Duration> begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// The time between two readings of record_time(); 0 if the second is the earlier one.
inline double seconds_between(std::uint64_t begin, std::uint64_t end) {
  return end > begin ? static_cast<double>(end - begin) * 1e-9 : 0;
}

// The median; of an even number of values, the larger of the two in the middle. A few disturbed
// timings among many hardly change it. Requires: at least one value.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace paceline
