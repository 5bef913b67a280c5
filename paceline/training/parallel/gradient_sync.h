#pragma once

// What makes one gradient of all ranks' gradients, as a training loop sees it: Reducer, and
// whatever else shards or averages them.

#include <cstdint>

namespace paceline {

class GradientSync {
 public:
  virtual ~GradientSync() = default;

  // While false, backward passes only accumulate into `.grad`.
  virtual void set_synchronize(bool synchronize) = 0;
  virtual bool synchronizes() const = 0;
  // Seconds that passes have spent waiting for communication since the last call: backward passes
  // for gradients, both for parameters that other hosts have.
  virtual double take_exposed_seconds() = 0;
  // So many steps were taken before, by a run that goes on: for what is said of a step.
  virtual void begin_at(std::int64_t step) { (void)step; }
};

// Gradients are not communicated while this object lives: they accumulate locally, and the first
// backward pass after it averages the sum. Forward and backward must both run inside.
class NoSync {
 public:
  explicit NoSync(GradientSync& sync) : sync_(sync), before_(sync.synchronizes()) {
    sync_.set_synchronize(false);
  }
  ~NoSync() { sync_.set_synchronize(before_); }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  GradientSync& sync_;
  const bool before_;
};

}  // namespace paceline
