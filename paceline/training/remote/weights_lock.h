#pragma once

// Keeps the steps of optimizers apart from the passes of a shared module: passes read its weights
// at the same time, a step waits for them and then has the weights alone. A pass that waits for
// another worker lends its hold (WeightsLent) meanwhile, so passes and steps of any workers never
// wait for each other in a circle, and a step happens between computations, never within one.
//
// Thread safety: all methods.

#include <condition_variable>
#include <mutex>

#include "paceline/engine/core/deadline.h"

namespace paceline::remote {

class WeightsLock {
 public:
  // False if the deadline passed first. A step that waits goes before passes that come later.
  bool begin_pass(Deadline deadline);
  void end_pass();
  bool begin_step(Deadline deadline);
  void end_step();

 private:
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  int num_passes_ = 0, num_waiting_steps_ = 0;
  bool is_stepping_ = false;
};

// This thread computes with the weights. Error(kTimeout) if a step still runs at the deadline.
class WeightsInUse {
 public:
  WeightsInUse(WeightsLock& lock, Deadline deadline);
  ~WeightsInUse();
  WeightsInUse(const WeightsInUse&) = delete;
  WeightsInUse& operator=(const WeightsInUse&) = delete;

 private:
  WeightsLock& lock_;
  WeightsLock* const outer_;
};

// This thread changes the weights. Error(kTimeout) if passes still compute with them at the
// deadline.
class WeightsInStep {
 public:
  WeightsInStep(WeightsLock& lock, Deadline deadline);
  ~WeightsInStep() { lock_.end_step(); }
  WeightsInStep(const WeightsInStep&) = delete;
  WeightsInStep& operator=(const WeightsInStep&) = delete;

 private:
  WeightsLock& lock_;
};

// This thread waits for another worker. Nothing happens if it does not compute with weights.
class WeightsLent {
 public:
  WeightsLent();
  ~WeightsLent();
  WeightsLent(const WeightsLent&) = delete;
  WeightsLent& operator=(const WeightsLent&) = delete;

 private:
  WeightsLock* const lock_;
};

}  // namespace paceline::remote
