#pragma once

// How the agents of a job watch each other: each gives a sign of life every interval and counts as
// lost when it gave none for so many intervals. Durations of one host's clock; clocks are never
// compared.

#include <chrono>

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

}  // namespace paceline::launcher
