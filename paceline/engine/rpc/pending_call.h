#pragma once

// A call under way, as its caller sees it. Its result is written once, before done() is true.
//
// Thread safety: all methods.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/rpc/call_error.h"
#include "paceline/engine/rpc/call_stats.h"
#include "paceline/engine/rpc/object_id.h"
#include "paceline/engine/rpc/outgoing.h"
#include "paceline/engine/rpc/session.h"

namespace paceline::rpc {

// What is to be called, and how.
struct CallTarget {
  std::string_view method;  // must outlive the call: a literal
  std::uint64_t method_number = 0;
  Effect effect{};
  Scope scope = Scope::kAnySession;
  std::uint64_t object = 0;  // that the method belongs to; 0: none
  // False for what handlers of messages with references need before they can run: such a call must
  // not wait for others, which may wait for that handler.
  bool needs_credit = true;
};

class PendingCall {
 public:
  PendingCall(const CallTarget& target, OutgoingPointer request, Deadline deadline)
      : target_(target), deadline_(deadline), request_(std::move(request)) {}
  PendingCall(const PendingCall&) = delete;
  PendingCall& operator=(const PendingCall&) = delete;

  bool done() const { return (state_.load(std::memory_order_acquire) & kDone) != 0; }
  const CallTarget& target() const { return target_; }
  Deadline deadline() const { return deadline_; }
  // Requires: done(). Throws what the call ended with, otherwise returns the reply.
  Payload& reply();
  const std::optional<ReferenceError>& reference_error() const { return reference_error_; }

 private:
  friend class Caller;
  static constexpr std::uint32_t kDone = 1, kNudged = 2, kSleeps = 4;
  // Requires: the result is there, and a pointer keeps the call.
  void end();
  // By the one thread that waits: until it is done, somebody nudges it or the time has passed.
  void sleep(std::chrono::nanoseconds limit);
  void nudge();

  const CallTarget target_;
  const Deadline deadline_;
  CallNumber number_ = 0;
  std::size_t size_ = 0;  // of the request, which counts against the credit
  CallMark mark_;
  OutgoingPointer request_;
  Payload reply_;
  std::optional<CallError> error_;
  std::optional<ReferenceError> reference_error_;
  std::function<void(CallEnd)> when_ended_;  // under the caller's mutex; may be empty
  std::atomic<std::uint32_t> state_{0};
};
using PendingPointer = std::shared_ptr<PendingCall>;

}  // namespace paceline::rpc
