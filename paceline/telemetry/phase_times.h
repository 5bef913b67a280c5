#pragma once

// Where the time of a run goes: wall-clock seconds per named phase of a training step (data,
// forward, backward, ...).
//
//   { const auto timed = times.measure(Phase::kForward); output = model->forward(input); }
//
// Cost: two clock reads a phase, about 50 ns. Thread safety: none; one per training loop.

#include <array>
#include <chrono>
#include <cstddef>
#include <string_view>

namespace paceline {

enum class Phase {
  kData,
  kForward,
  kBackward,
  kCommunication,
  kOptimizer,
  kEvaluation,
  kCheckpoint
};
inline constexpr std::size_t kNumPhases = 7;

constexpr std::string_view name_of(Phase phase) {
  constexpr std::array<std::string_view, kNumPhases> names = {
      "data", "forward", "backward", "communication", "optimizer", "evaluation", "checkpoint"};
  return names[static_cast<std::size_t>(phase)];
}

class PhaseTimes {
 public:
  using Clock = std::chrono::steady_clock;

  // Adds the time until it goes out of scope.
  class Measurement {
   public:
    Measurement(PhaseTimes& times, Phase phase) : times_(times), phase_(phase) {}
    ~Measurement() {
      times_.add(phase_, std::chrono::duration<double>(Clock::now() - begin_).count());
    }
    Measurement(const Measurement&) = delete;
    Measurement& operator=(const Measurement&) = delete;

   private:
    PhaseTimes& times_;
    const Phase phase_;
    const Clock::time_point begin_ = Clock::now();
  };

  Measurement measure(Phase phase) { return {*this, phase}; }
  void add(Phase phase, double seconds) { seconds_[static_cast<std::size_t>(phase)] += seconds; }
  double seconds(Phase phase) const { return seconds_[static_cast<std::size_t>(phase)]; }
  void clear() { seconds_ = {}; }

 private:
  std::array<double, kNumPhases> seconds_{};
};

}  // namespace paceline
