#include "paceline/engine/rpc/pending_call.h"

#include "paceline/engine/core/futex.h"

namespace paceline::rpc {

Payload& PendingCall::reply() {
  if (reference_error_) throw *reference_error_;
  if (error_) throw *error_;
  return reply_;
}

void PendingCall::end() {
  if ((state_.fetch_or(kDone, std::memory_order_acq_rel) & kSleeps) != 0) futex_wake_all(state_);
}

void PendingCall::sleep(std::chrono::nanoseconds limit) {
  const std::uint32_t state = state_.fetch_or(kSleeps, std::memory_order_acq_rel) | kSleeps;
  if ((state & (kDone | kNudged)) == 0) futex_wait(state_, state, limit);
  state_.fetch_and(~(kSleeps | kNudged), std::memory_order_acq_rel);
}

void PendingCall::nudge() {
  if ((state_.fetch_or(kNudged, std::memory_order_acq_rel) & kSleeps) != 0) futex_wake_all(state_);
}

}  // namespace paceline::rpc
