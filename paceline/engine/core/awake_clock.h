#pragma once

// The monotonic clock without the time in which this process stood still: stopped by a signal,
// suspended by a scheduler, or starved of its processor. How long another process has been silent
// is measured on this clock, so that a job that was stopped as a whole finds no peer late when it
// goes on.
//
// A process cannot see that it stands still, only afterwards that a loop that comes by at least
// twice a second did not. Every loop in which a process waits for others therefore keeps a Vigil,
// which tells this clock. A standstill of less than a second goes unnoticed. A process
// stands still as a whole, so this is one state of the process; a fork inherits it.
//
// Thread safety: all of it. No signal handler may use it, nor a Vigil: it takes a mutex.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "paceline/engine/core/deadline.h"

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

  // When a deadline passes that was set to `moment`: a deadline that would pass during a standstill
  // keeps the time that it had left before it, and at least kLeastLeft; later ones do not change.
  // Knows the last few standstills.
  static Monotonic::time_point put_off(Monotonic::time_point moment);
  static constexpr std::chrono::seconds kLeastLeft{5};

  // From a Vigil. Several threads may notice the same standstill.
  static void stood_still(Monotonic::time_point from, Monotonic::time_point to);

 private:
  static inline std::atomic<rep> slept_{0}, woke_{0};
};

// `deadline`, put off by standstills (AwakeClock::put_off).
Deadline put_off(const Deadline& deadline);
// The deadline of a wait that began at `begun`, put off by all standstills since then. Always pass
// the deadline that the wait began with.
Deadline put_off_since(Deadline::Clock::time_point begun, const Deadline& deadline);

// Kept by every loop that waits for other processes. It detects that this process stood still by
// the gap between two rounds, tells AwakeClock, and puts off the deadlines of the wait, before a
// rank is called late.
//
// Cost: a reading of the clock each round. Thread safety: none; one loop's.
class Vigil {
 public:
  // The longest time between two looks of the loop.
  static constexpr std::chrono::milliseconds kRound{500};
  // A process in which no Vigil has looked for so long stood still.
  static constexpr std::chrono::milliseconds kStandstill{1000};

  // Requires: at most kRound since the last call, or since the Vigil was made, unless this process
  // stood still.
  void look();
  // Looks, and moves `deadline` on where a standstill has put it off. Whether it has passed. The
  // first call sees a standstill since the deadline was set, too: a wait often begins later than
  // that, behind the work of an operation, and its process may have been stopped there.
  bool sees_passed(Deadline& deadline);

 private:
  Deadline::Clock::time_point looked_ = Deadline::Clock::now();
  bool has_seen_deadline_ = false;
};

// Waits for a condition variable with a Vigil. False when it is not ready by the deadline; `ready`
// is asked with the lock held.
template <class Ready>
bool wait_awake(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                Deadline deadline, Ready ready) {
  for (Vigil vigil; !ready();) {
    if (vigil.sees_passed(deadline)) return false;
    changed.wait_for(lock, std::min<std::chrono::nanoseconds>(deadline.remaining(), Vigil::kRound));
  }
  return true;
}

}  // namespace paceline
