#pragma once

// How the agents of a job watch each other: each gives a sign of life in every interval, and counts
// as lost after a silence of longest_silence(). Silence measures the time without a sign of life.
// Each host measures durations with its own clock, so the clocks of the hosts need not agree.

#include <algorithm>
#include <chrono>

#include "paceline/engine/core/awake_clock.h"

namespace paceline::launcher {

struct KeepAlive {
  std::chrono::milliseconds interval{500};
  int max_attempts = 6;

  std::chrono::milliseconds limit() const { return interval * max_attempts; }
  // The silence after which the other end counts as lost. It is one interval longer than limit(),
  // because the last sign of life may have been sent up to one interval before the other end died.
  std::chrono::milliseconds longest_silence() const { return limit() + interval; }
  // How long an end's own connection may be silent while that end gives signs of life over another
  // connection.
  std::chrono::milliseconds longest_standstill() const { return 4 * limit(); }
  bool operator==(const KeepAlive&) const = default;
};

// The time for which another process has given no sign of life that this process could have heard.
// Time in which this process itself was stopped does not count (engine/core/awake_clock.h). After
// such a stop the count begins again, with a few seconds of grace, because processes that were
// stopped together may continue one after the other.
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
