#pragma once

// Waits for something that cannot wake its waiter, such as a file or the state of a process.

#include <chrono>
#include <thread>

#include "paceline/engine/core/deadline.h"

namespace paceline::harness {

// Returns true as soon as `condition` holds, or false if it does not hold by the deadline.
template <class Condition>
[[nodiscard]] bool wait_until(const Condition& condition, Deadline deadline,
                              std::chrono::microseconds interval = std::chrono::milliseconds(5)) {
  while (!condition()) {
    if (deadline.expired()) return condition();
    std::this_thread::sleep_for(interval);
  }
  return true;
}

}  // namespace paceline::harness
