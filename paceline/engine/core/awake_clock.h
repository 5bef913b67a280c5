#pragma once

// The monotonic clock without the time in which this process stood still: stopped by a signal,
// suspended by a scheduler, or starved of its processor. Whoever judges that another has been
// silent for too long measures it on this clock, so that a job that was stopped as a whole finds
// no peer late when it goes on.
//
// A process cannot see that it stands still, only afterwards that a loop that comes by at least
// twice a second did not. Every loop in which a process waits for others therefore keeps a Vigil
// (vigil.h), which tells this clock. A standstill of less than a second goes unnoticed. A process
// stands still as a whole, so this is one state of the process; a fork inherits it.
//
// Thread safety: all of it. No signal handler may use it, nor a Vigil: it takes a mutex.

#include <atomic>
#include <chrono>

namespace paceline {

class AwakeClock {
 public:
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<AwakeClock>;
  using Monotonic = std::chrono::steady_clock;
  static constexpr bool is_steady = false;  // when a standstill is noticed it goes back

  static time_point now() {
    const duration slept(slept_.load(std::memory_order_relaxed));
    return time_point(Monotonic::now().time_since_epoch() - slept);
  }
  // The end of the last standstill; time_point() when there was none.
  static time_point woke() { return time_point(duration(woke_.load(std::memory_order_relaxed))); }

  // When a deadline passes that was set to `moment`: one that fell into a standstill has afterwards
  // what was left of it before, and at least kLeastLeft; one that was set afterwards is untouched.
  // Knows the last few standstills.
  static Monotonic::time_point put_off(Monotonic::time_point moment);
  static constexpr std::chrono::seconds kLeastLeft{5};

  // From a Vigil. Several threads may notice the same standstill.
  static void stood_still(Monotonic::time_point from, Monotonic::time_point to);

 private:
  static inline std::atomic<rep> slept_{0}, woke_{0};
};

}  // namespace paceline
