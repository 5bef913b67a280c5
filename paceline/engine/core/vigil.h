#pragma once

// What a loop in which a process waits for others keeps: it notices that the process stood still,
// tells AwakeClock, and puts off the deadlines of the wait, before anybody is called late.
//
// Cost: a reading of the clock each round. Thread safety: none; one loop's.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/deadline.h"

namespace paceline {

// As standstills have put it off (AwakeClock::put_off).
Deadline put_off(const Deadline& deadline);
// The same for a wait that began at `begun`, as Vigil::sees_passed() moves its deadline: give it
// the deadline that the wait began with.
Deadline put_off_since(Deadline::Clock::time_point begun, const Deadline& deadline);

class Vigil {
 public:
  // At least so often the loop looks.
  static constexpr std::chrono::milliseconds kRound{500};
  // When no Vigil of the process has looked for so long, it stood still.
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
