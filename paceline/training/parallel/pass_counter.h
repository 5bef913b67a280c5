#pragma once

// Counts the steps of a loop that does not count them itself, for `paceline top` and `paceline
// advise` (engine/telemetry/step_log.h). A step is what the loop does from one change of the
// module's parameters to the next: its first backward pass that averages gradients is counted,
// further ones before an optimizer has taken its step are not. So several losses, accumulation, and
// the passes of a GAN through both of its modules are one step an iteration (and one more in the
// whole run, where the first pass precedes the first change). Each evaluation of LBFGS's closure is
// a step. Of a program with several wrapped modules, those of the one that ended the first pass
// count.
//
// A step lasts from the end of the counted pass before, or from the first forward pass after an
// evaluation, to the end of its own.
//
// A program whose parameters never change has every pass counted, from the kPatience-th on.
//
// Cost: a look at the clock a forward pass, and that of StepLog::step() a step. Thread safety:
// none.

#include <chrono>
#include <cstdint>
#include <optional>

#include "paceline/engine/telemetry/step_log.h"

namespace paceline {

class PassCounter {
 public:
  static constexpr int kPatience = 8;

  explicit PassCounter(std::int64_t parameter_bytes) : parameter_bytes_(parameter_bytes) {}

  // A forward pass over so many samples begins; one that does not train is no part of a step.
  void begin_forward(std::int64_t samples, bool trains);
  // A pass that averages gradients has ended; `waited` of its seconds it waited for other ranks.
  // `version`: another one after each change of the parameters.
  void end_backward(double waited, std::uint64_t version);

 private:
  using Clock = std::chrono::steady_clock;

  bool begins_step(std::uint64_t version);

  const std::int64_t parameter_bytes_;
  std::optional<StepLog> log_;
  std::optional<std::uint64_t> version_;    // at the last pass
  int num_unchanged_ = 0;                   // passes in the whole run before the first change
  bool saw_change_ = false;                 // of the version
  std::optional<Clock::time_point> begin_;  // of the step under way
  std::int64_t samples_ = 0;                // of it
  double waited_ = 0;                       // in it
};

}  // namespace paceline
