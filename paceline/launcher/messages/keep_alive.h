#pragma once

// How the agents of a job watch each other: each gives a sign of life every interval and counts as
// lost when it gave none for max_attempts intervals. Silence measures for how long another process
// gave none. All durations are of one host's clock; clocks are never compared.

#include <algorithm>
#include <chrono>

#include "paceline/engine/core/awake_clock.h"

namespace paceline::launcher {

struct KeepAlive {
  std::chrono::milliseconds interval{500};
  int max_attempts = 6;

  std::chrono::milliseconds limit() const { return interval * max_attempts; }
  // After such a silence the other end is lost: its last sign of life may be an interval older than
  // the gap.
  std::chrono::milliseconds longest_silence() const { return limit() + interval; }
  // How long the own connection of an end may be silent that gives signs of life elsewhere.
  std::chrono::milliseconds longest_standstill() const { return 4 * limit(); }
  bool operator==(const KeepAlive&) const = default;
};

// For how long another process has given no sign of life, as far as this one could have heard it. A
// time in which this process stood still does not count (engine/core/awake_clock.h). Once it goes
// on, the other process has all of its time again, and a little more, because processes that were
// stopped together may go on one after the other.
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
