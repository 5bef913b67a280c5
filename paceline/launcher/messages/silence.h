#pragma once

// For how long another process has given no sign of life, as far as this one could have heard it.
// What this process slept through does not count (engine/core/awake_clock.h), and once it is awake
// everybody has all of their time again, and a little more: processes that were stopped together
// may go on one after the other.
//
// Thread safety: none.

#include <algorithm>
#include <chrono>

#include "paceline/engine/core/awake_clock.h"

namespace paceline::launcher {

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
