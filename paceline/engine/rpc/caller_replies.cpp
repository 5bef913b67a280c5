// How a caller waits for a reply, and how it reads the replies that have arrived.

#include "paceline/engine/core/system/thread.h"
#include "paceline/engine/rpc/caller.h"

namespace paceline::rpc {

namespace {

constexpr int kManyReads = 4;
constexpr std::size_t kMaxReplies = 256;  // replies that are taken together

}  // namespace

Payload& PendingCall::reply() {
  if (reference_error_) throw *reference_error_;
  if (error_) throw *error_;
  return reply_;
}

void PendingCall::end() {
  if ((state_.fetch_or(kDone, std::memory_order_acq_rel) & kSleeps) != 0) futex_wake_all(state_);
}

bool PendingCall::sleep(std::chrono::nanoseconds limit) {
  const std::uint32_t state = state_.fetch_or(kSleeps, std::memory_order_acq_rel) | kSleeps;
  if ((state & (kDone | kNudged)) == 0) futex_wait(state_, state, limit);
  const std::uint32_t seen = state_.fetch_and(~(kSleeps | kNudged), std::memory_order_acq_rel);
  return (seen & kNudged) != 0;
}

void PendingCall::nudge() {
  if ((state_.fetch_or(kNudged, std::memory_order_acq_rel) & kSleeps) != 0) futex_wake_all(state_);
}

void PendingCall::leave_queue(bool wakes) {
  state_.fetch_or(kOutOfQueue, std::memory_order_acq_rel);
  if (wakes) nudge();
}

void Caller::wait(const PendingPointer& call, Deadline deadline) {
  if (call->done()) return;
  const Pool::Blocked blocked;
  {
    Lock lock(mutex_);
    was_waited_for_ = true;
    if (batched_bytes_ > 0) send(lock);
  }
  wait_until(call, PendingCall::kDone, deadline);
}

// Returns when the call is in one of these states or done, or at the deadline.
void Caller::wait_until(const PendingPointer& call, std::uint32_t states, Deadline deadline) {
  states |= PendingCall::kDone;
  bool is_nudged = false;
  while (!call->has(states) && !deadline.expired()) {
    if (try_read(deadline)) {
      is_nudged = false;
      continue;
    }
    {
      const Lock lock(mutex_);
      if (call->has(states)) break;
      waiting_.push_back(call);
    }
    // Another thread is reading. When it stops, it hands the reading over to one of the waiting
    // threads whose calls have not ended.
    if (try_read(deadline)) {
      is_nudged = false;
    } else {
      is_nudged = call->sleep(std::min<std::chrono::nanoseconds>(deadline.remaining(), kNap));
    }
    const Lock lock(mutex_);
    std::erase(waiting_, call);
  }
  if (is_nudged) hand_over();  // it was this thread's turn to read
}

// Reads the socket once. Returns false if another thread is reading it or there is no connection.
bool Caller::try_read(Deadline deadline) {
  std::unique_lock receiving(receiving_, std::try_to_lock);
  if (!receiving) return false;
  ConnectionPointer connection;
  {
    Lock lock(mutex_);
    connection = connection_;
    if (connection && is_watched_ && ++num_reads_in_row_ >= kManyReads) watch_locked(false);
    if (batched_bytes_ > 0) send(lock);
  }
  if (connection) receive(connection, &deadline);
  receiving.unlock();
  hand_over();
  return connection != nullptr;
}

void Caller::pump() {
  std::unique_lock receiving(receiving_, std::try_to_lock);
  if (!receiving) return;
  ConnectionPointer connection;
  {
    Lock lock(mutex_);
    connection = connection_;
    if (batched_bytes_ > 0) send(lock);
  }
  if (connection) receive(connection, nullptr);
  receiving.unlock();
  hand_over();
}

// Called after this thread has stopped reading: lets another waiting thread, or the pool, continue.
void Caller::hand_over() {
  const bool has_missed = has_missed_.exchange(false);
  const Lock lock(mutex_);
  if (!connection_) return;  // nothing can be read; waiting threads stay asleep
  while (!waiting_.empty()) {
    const PendingPointer next = std::move(waiting_.back());
    waiting_.pop_back();
    if (next->done()) continue;
    next->nudge();
    return;
  }
  if (calls_.empty()) return;
  if (!is_watched_ && calls_.size() > 1) return watch_locked(true);
  if (is_watched_ && has_missed) update_events_locked();
}

void Caller::ready() {
  // Sending continues even while another thread waits for a reply.
  ConnectionPointer connection;
  {
    const Lock lock(mutex_);
    connection = connection_;
    num_reads_in_row_ = 0;
  }
  if (!connection) return;
  if (!connection->flush()) connection->shut_down();
  {
    const Lock lock(mutex_);
    if (connection == connection_ && is_sending_ && !connection->has_unsent()) {
      update_events_locked();
    }
  }
  std::unique_lock receiving(receiving_, std::try_to_lock);
  if (!receiving) {
    has_missed_ = true;  // the reading thread checks this flag when it stops reading
    if (!receiving.try_lock()) return;
  }
  if (!receive(connection, nullptr)) return;
  receiving.unlock();
  bool is_watched = false;
  {
    const Lock lock(mutex_);
    is_watched = is_watched_;
  }
  if (!is_watched) hand_over();
}

// Reads from the connection; returns false when it has ended. Requires: this thread holds
// receiving_.
bool Caller::receive(const ConnectionPointer& connection, const Deadline* deadline) {
  std::string why = "the connection has ended";
  bool is_there = false;
  try {
    is_there = is_closed_there() ? connection->receive_to_the_end(*this)
                                 : connection->receive(*this, deadline);
  } catch (const std::exception& error) {
    why = error.what();
  }
  take_replies();
  if (!is_there) disconnect(connection, why);
  return is_there;
}

void Caller::watch_locked(bool watched) {
  is_watched_ = watched;
  num_reads_in_row_ = 0;
  update_events_locked();
}

void Caller::update_events_locked() {
  is_sending_ = connection_->has_unsent();
  pool_->change(*this, (is_watched_ ? static_cast<std::uint32_t>(EPOLLIN) : 0) |
                           (is_sending_ ? connection_->event_of_room() : 0));
}

// Requires: this thread holds receiving_.
void Caller::take_replies() {
  if (replies_.empty()) return;
  {
    Lock lock(mutex_);
    steps_.clear();
    for (Reply& reply : replies_) {
      if (!session_.replied(reply.frame.number, steps_)) continue;
      reply.call = remove_locked(reply.frame.number);
      if (reply.call->when_ended_) reply.call->when_ended_(CallEnd::kReplied);
    }
    carry_out(steps_);
    // The replies only produce acknowledgements, which can wait for the next request.
    if (to_acknowledge_.size() >= kMaxAcknowledgements) {
      send(lock);
    } else if (const std::size_t size = begin_queued_calls_locked(); size > 0) {
      send_soon(lock, size);
    }
  }
  for (auto& [frame, payload, call] : replies_) {
    if (!call) continue;
    count_end(*call, frame.status != ReplyStatus::kOk);
    call->request_.reset();
    if (frame.status == ReplyStatus::kOk) {
      call->reply_ = std::move(payload);
    } else {
      set_failed_reply(*call, frame.status, payload);
    }
    call->end();
  }
  replies_.clear();
}

void Caller::take(const Frame& frame, Payload payload) {
  if (frame.kind == FrameKind::kReply) {
    replies_.push_back({frame, std::move(payload)});
    if (replies_.size() == kMaxReplies) take_replies();
    return;
  }
  take_replies();
  Lock lock(mutex_);
  steps_.clear();
  bool lost = false;
  switch (frame.kind) {
    case FrameKind::kOpened:
      take_credit(frame);
      had_session_ = true;
      lease_.begin(opening_sent_);
      session_.opened(frame.session, steps_);
      break;
    case FrameKind::kResumed:
      take_credit(frame);
      lease_.begin(opening_sent_);
      take_resumed(payload);
      break;
    case FrameKind::kRefused:
      if (frame.session != session_.session()) break;
      why_ = "the worker no longer knows the session";
      why_code_ = ErrorCode::kPeerLost;
      lost = std::exchange(had_session_, false);
      to_acknowledge_.clear();
      lease_.interrupt();
      session_.refused(frame.session, steps_);
      break;
    case FrameKind::kRenewed:
      lease_.renewal_confirmed();
      break;
    case FrameKind::kCredit:
      num_handled_ = std::clamp(frame.number, num_handled_, num_told_);
      bytes_handled_ = std::clamp(frame.method, bytes_handled_, bytes_told_);
      break;
    default:
      fail(ErrorCode::kCorrupt, "a worker sent a frame that only callers may send");
  }
  carry_out(steps_);
  // The connection works again, so earlier failures no longer count.
  if (frame.kind == FrameKind::kOpened || frame.kind == FrameKind::kResumed) why_.clear();
  const std::string incarnation = lost ? incarnation_ : "";
  send(lock);
  if (lost) session_lost_(incarnation);
}

void Caller::take_credit(const Frame& frame) {
  max_calls_ = std::max<std::size_t>(frame.max_calls, 1);
  max_bytes_ = frame.method;
  lease_ =
      CallerLease(std::chrono::milliseconds(frame.time_left_ms));  // the callee's lease applies
}

void Caller::take_resumed(const Payload& payload) {
  std::vector<KnownCall> known;
  for (MessageReader in(payload.bytes()); in.remaining() > 0;) {
    const auto number = in.get_number<CallNumber>();
    const auto state = in.get_number<std::uint8_t>();
    if (state > static_cast<std::uint8_t>(CallState::kFinished)) in.refuse("no such state");
    known.push_back({number, static_cast<CallState>(state)});
  }
  session_.resumed(known, steps_);
}

void Caller::set_failed_reply(PendingCall& call, ReplyStatus status, const Payload& text) const {
  const bool ran = status == ReplyStatus::kHandlerFailed;
  const std::string method(call.target_.method);
  const std::string message = fmt::format("{}: {} of worker {} {}: {}", setup_->self.name, method,
                                          name_, ran ? "failed" : "was not executed", text.text());
  if (status == ReplyStatus::kNoObject) {
    call.reference_error_.emplace(ReferenceError::Reason::kNoObject, name_, method, message);
    return;
  }
  const ErrorCode code = ran                                  ? ErrorCode::kAborted
                         : status == ReplyStatus::kNoMethod   ? ErrorCode::kInvalid
                         : status == ReplyStatus::kUnreadable ? ErrorCode::kCorrupt
                         : status == ReplyStatus::kLeaving    ? ErrorCode::kPeerLost
                         : status == ReplyStatus::kBusy       ? ErrorCode::kSystem
                                                              : ErrorCode::kTimeout;
  call.error_.emplace(code, ran ? CallError::Executed::kYes : CallError::Executed::kNo, name_,
                      method, message);
}

CallError Caller::unreadable_reply(const PendingCall& call, const std::string& why) const {
  const std::string method(call.target().method);
  return {ErrorCode::kCorrupt, CallError::Executed::kYes, name_, method,
          fmt::format("{}: {} of worker {} was executed, and its reply cannot be read: {}",
                      setup_->self.name, method, name_, why)};
}

}  // namespace paceline::rpc
