#pragma once

// How the agents of a job watch each other: each gives a sign of life every interval and counts as
// lost when it gave none for so many intervals. Durations of one host's clock; clocks are never
// compared.

#include <algorithm>
#include <chrono>

#include "paceline/engine/core/awake_clock.h"

namespace paceline::launcher {

struct KeepAlive {
  std::chrono::milliseconds interval{500};
  int max_attempts = 6;

  std::chrono::milliseconds limit() const { return interval * max_attempts; }
  // When the verdict falls: the last sign of life may be an interval older than the gap.
  std::chrono::milliseconds longest_silence() const { return limit() + interval; }
  // An end that gives signs of life elsewhere must be heard on its own connection after so long.
  std::chrono::milliseconds longest_standstill() const { return 4 * limit(); }
  bool operator==(const KeepAlive&) const = default;
};

// For how long another process has given no sign of life, as far as this one could have heard it.
// What this process slept through does not count (engine/core/awake_clock.h), and once it is awake
// everybody has all of their time again, and a little more: processes that were stopped together
// may go on one after the other.
//
// Thread safety: none.

class Silence {
 public:
  void heard() { since_ = AwakeClock::now(); }

  std::chrono::nanoseconds lasted() const {
    const auto from = std::max(since_, AwakeClock::woke() + kLateRisers);
    return std::max(AwakeClock::now() - from, AwakeClock::duration::zero());
  }

 private:
  static constexpr std::chrono::seconds kLateRisers{3};

  AwakeClock::time_point since_ = AwakeClock::now();
};

}  // namespace paceline::launcher
