#pragma once

// The monotonic clock minus the time in which this process stood still: stopped by a signal,
// suspended by a scheduler, or starved of its processor. The silence of other processes is measured
// on this clock, so that a job that was stopped as a whole does not find its peers late when it
// resumes.
//
// A process cannot notice a standstill while it lasts, only afterwards: a loop that should have run
// at least twice a second did not. So every loop in which a process waits for others keeps a Vigil,
// which reports standstills to this clock. A standstill of less than a second goes unnoticed. All
// threads of a process stand still together, so the state is global; a fork inherits it.
//
// A WaitCheck lets a waiting thread call a function of the program, for example to notice Ctrl-C.
//
// Thread safety: any thread may call any function. A signal handler must not call put_off() or
// put_off_since(), nor use a Vigil, because these take a mutex.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <utility>

#include "paceline/engine/core/deadline.h"

namespace paceline {

class AwakeClock {
 public:
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<AwakeClock>;
  using Monotonic = std::chrono::steady_clock;
  static constexpr bool is_steady = false;  // it steps back when a standstill is noticed

  static time_point now() {
    const duration slept(slept_.load(std::memory_order_relaxed));
    return time_point(Monotonic::now().time_since_epoch() - slept);
  }
  // The end of the last standstill; time_point() when there was none.
  static time_point woke() { return time_point(duration(woke_.load(std::memory_order_relaxed))); }

  // The deadline `moment`, extended if it passed during a standstill: the wait then keeps the time
  // that was left when the standstill began, but at least kMinTimeLeft. Other deadlines do not
  // change. Only the last eight standstills are known.
  static Monotonic::time_point put_off(Monotonic::time_point moment);
  static constexpr std::chrono::seconds kMinTimeLeft{5};

  // Called by a Vigil. Several threads may report the same standstill.
  static void stood_still(Monotonic::time_point from, Monotonic::time_point to);

 private:
  static inline std::atomic<rep> slept_{0}, woke_{0};
};

// `deadline`, extended by standstills as AwakeClock::put_off() does.
Deadline put_off(const Deadline& deadline);
// The deadline of a wait that began at `begun`, extended by all standstills since then. Always pass
// the wait's original deadline: one that is already extended would be extended again.
Deadline put_off_since(Deadline::Clock::time_point begun, const Deadline& deadline);

// Detects standstills for one loop that waits for other processes: a long gap between two rounds
// of the loop shows that this process stood still. The Vigil reports the standstill to AwakeClock,
// and extends the deadline of the wait before any rank is blamed for being late.
//
// Cost: at most two clock readings per round. Thread safety: none; each Vigil belongs to one loop.
class Vigil {
 public:
  // The longest time that a loop may take between two calls of look().
  static constexpr std::chrono::milliseconds kRound{500};
  // If no Vigil of the process has looked for this long, the process stood still.
  static constexpr std::chrono::milliseconds kStandstill{1000};

  // Requires: at most kRound since the last call, or since the Vigil was made, unless this process
  // stood still.
  void look();
  // Calls look(), extends `deadline` by a standstill, and returns whether the deadline has passed.
  // The first call also finds a standstill between the setting of the deadline and the beginning of
  // the wait: an operation often works for a while before it waits, and the process may have been
  // stopped during that time.
  bool sees_passed(Deadline& deadline);

 private:
  Deadline::Clock::time_point looked_ = Deadline::Clock::now();
  bool has_seen_deadline_ = false;
};

// Waits on a condition variable with a Vigil until `ready` returns true; `ready` is called with the
// lock held. Returns false at the deadline.
template <class Ready>
bool wait_awake(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                Deadline deadline, Ready ready) {
  for (Vigil vigil; !ready();) {
    if (vigil.sees_passed(deadline)) return false;
    changed.wait_for(lock, std::min<std::chrono::nanoseconds>(deadline.remaining(), Vigil::kRound));
  }
  return true;
}

// A check that one thread makes while it waits for other processes. An embedder that must react to
// something during a wait, for example Python to Ctrl-C, sets a WaitCheck around its call. Every
// wait of that thread in a collective, for a message, in Work::wait() or in forming a group then
// calls the function between its sleeps: at least every kRound, or about once a second while a
// group forms. If the function throws, the wait ends with that exception: a collective aborts its
// group as after any other failure. The function should throw an Error: other ranks get its text.
//
// A thread without a WaitCheck pays for one load of a thread-local pointer, and only while it
// waits.
//
// Thread safety: a WaitCheck belongs to the thread that made it. WaitChecks of a thread nest; only
// the innermost check is called.
class WaitCheck {
 public:
  // The longest time between two calls, except while a group forms.
  static constexpr std::chrono::milliseconds kRound{250};

  explicit WaitCheck(std::function<void()> check)
      : check_(std::move(check)), outer_(std::exchange(current_, this)) {}
  ~WaitCheck() { current_ = outer_; }
  WaitCheck(const WaitCheck&) = delete;
  WaitCheck& operator=(const WaitCheck&) = delete;

  // Whether this thread has a check.
  static bool is_set() { return current_ != nullptr; }
  // Called by waits: runs this thread's check, if it has one.
  static void run() {
    if (current_ != nullptr) current_->check_();
  }

 private:
  static inline thread_local const WaitCheck* current_ = nullptr;

  const std::function<void()> check_;
  const WaitCheck* const outer_;
};

}  // namespace paceline
