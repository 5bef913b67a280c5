#include "paceline/training/remote/weights_lock.h"

#include <utility>

#include "paceline/engine/core/check.h"

namespace paceline::remote {
namespace {

thread_local WeightsLock* lock_of_this_thread = nullptr;  // of the pass that it computes

}  // namespace

bool WeightsLock::begin_pass(Deadline deadline) {
  std::unique_lock lock(mutex_);
  const bool is_free = changed_.wait_until(
      lock, deadline.moment(), [this] { return !is_stepping_ && num_waiting_steps_ == 0; });
  if (is_free) ++num_passes_;
  return is_free;
}

void WeightsLock::end_pass() {
  const std::lock_guard lock(mutex_);
  if (--num_passes_ == 0) changed_.notify_all();
}

bool WeightsLock::begin_step(Deadline deadline) {
  std::unique_lock lock(mutex_);
  ++num_waiting_steps_;
  const bool is_free = changed_.wait_until(lock, deadline.moment(),
                                           [this] { return !is_stepping_ && num_passes_ == 0; });
  --num_waiting_steps_;
  if (is_free) {
    is_stepping_ = true;
  } else {
    changed_.notify_all();
  }
  return is_free;
}

void WeightsLock::end_step() {
  const std::lock_guard lock(mutex_);
  is_stepping_ = false;
  changed_.notify_all();
}

WeightsInUse::WeightsInUse(WeightsLock& lock, Deadline deadline)
    : lock_(lock), outer_(std::exchange(lock_of_this_thread, &lock)) {
  if (lock_.begin_pass(deadline)) return;
  lock_of_this_thread = outer_;
  fail(ErrorCode::kTimeout, "an optimizer's step on these weights did not end in time");
}

WeightsInUse::~WeightsInUse() {
  lock_.end_pass();
  lock_of_this_thread = outer_;
}

WeightsInStep::WeightsInStep(WeightsLock& lock, Deadline deadline) : lock_(lock) {
  if (!lock.begin_step(deadline)) {
    fail(ErrorCode::kTimeout, "passes still computed with the weights at the deadline");
  }
}

WeightsLent::WeightsLent() : lock_(std::exchange(lock_of_this_thread, nullptr)) {
  if (lock_ != nullptr) lock_->end_pass();
}

WeightsLent::~WeightsLent() {
  if (lock_ == nullptr) return;
  lock_->begin_pass(Deadline::never());  // a step only computes
  lock_of_this_thread = lock_;
}

}  // namespace paceline::remote
