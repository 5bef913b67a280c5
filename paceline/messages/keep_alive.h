#pragma once

// How the agents of a job watch each other: each gives a sign of life every interval and counts as
// lost after so many intervals without one. Durations of one host's clock; clocks are never
// compared.

#include <chrono>

namespace paceline::launch {

struct KeepAlive {
  std::chrono::milliseconds interval{500};
  int max_attempts = 6;

  std::chrono::milliseconds limit() const { return interval * max_attempts; }
  bool operator==(const KeepAlive&) const = default;
};

}  // namespace paceline::launch
