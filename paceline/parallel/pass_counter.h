#pragma once

// Counts the steps of a loop that does not count them itself, for `paceline top` and `paceline
// advise` (telemetry/step_log.h): a step is a backward pass that averages gradients. It lasts from
// the end of the one before, or from the first forward pass after an evaluation, to its own end.
//
// Cost: a look at the clock a forward pass, and that of StepLog::step() a step. Thread safety:
// none.

#include <chrono>
#include <cstdint>
#include <optional>

#include "paceline/telemetry/step_log.h"

namespace paceline {

class PassCounter {
 public:
  explicit PassCounter(std::int64_t parameter_bytes) : parameter_bytes_(parameter_bytes) {}

  // A forward pass over so many samples begins; one that does not train is no part of a step.
  void begin_forward(std::int64_t samples, bool trains);
  // A pass that averages gradients has ended; `waited` of its seconds it waited for other ranks.
  void end_backward(double waited);

 private:
  using Clock = std::chrono::steady_clock;

  const std::int64_t parameter_bytes_;
  std::optional<StepLog> log_;
  std::optional<Clock::time_point> begin_;  // of the step under way
  std::int64_t samples_ = 0;                // of it
};

}  // namespace paceline
