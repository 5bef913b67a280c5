#pragma once

// Measures where the time of a run goes: wall-clock seconds for each named phase of a training step
// (data, forward, backward, ...).
//
//   { const auto timed = times.measure(Phase::kForward); output = model->forward(input); }
//
// With a timeline, each span is recorded there as well. Cost: two clock reads per phase, about 50
// ns. Thread safety: none; each training loop has its own object.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

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
class Timeline;

class PhaseTimes {
 public:
  using Clock = std::chrono::steady_clock;

  PhaseTimes() = default;
  // `timeline` may be null. This object and the groups of this rank share ownership of it.
  explicit PhaseTimes(std::shared_ptr<Timeline> timeline) : timeline_(std::move(timeline)) {}

  // Adds the time from its construction to its destruction.
  class Measurement {
   public:
    Measurement(PhaseTimes& times, Phase phase) : times_(times), phase_(phase) {}
    ~Measurement() { times_.add(phase_, begin_, Clock::now()); }
    Measurement(const Measurement&) = delete;
    Measurement& operator=(const Measurement&) = delete;

   private:
    PhaseTimes& times_;
    const Phase phase_;
    const Clock::time_point begin_ = Clock::now();
  };

  Measurement measure(Phase phase) { return {*this, phase}; }
  void add(Phase phase, Clock::time_point begin, Clock::time_point end) {
    add(phase, std::chrono::duration<double>(end - begin).count());
    record(phase, begin, end);
  }
  // Adds a phase from `begin` to now. `waited` seconds of it, in which the rank waited for others,
  // count as communication.
  void add_with_waiting(Phase phase, Clock::time_point begin, double waited) {
    const auto end = Clock::now();
    add(phase, std::chrono::duration<double>(end - begin).count() - waited);
    add(Phase::kCommunication, waited);
    record(phase, begin, end);
  }
  // Records a span on the timeline only.
  void record(Phase phase, Clock::time_point begin, Clock::time_point end);
  void record_step(std::int64_t step, Clock::time_point begin);
  // Adds seconds without a span on the timeline.
  void add(Phase phase, double seconds) { seconds_[static_cast<std::size_t>(phase)] += seconds; }
  double seconds(Phase phase) const { return seconds_[static_cast<std::size_t>(phase)]; }
  void clear() { seconds_ = {}; }

 private:
  std::array<double, static_cast<std::size_t>(Phase::kCheckpoint) + 1> seconds_{};
  std::shared_ptr<Timeline> timeline_;
};

}  // namespace paceline
