#include "paceline/engine/rpc/caller.h"

#include <algorithm>
#include <cerrno>

#include <sys/epoll.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/log.h"

namespace paceline::rpc {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kMany = 4;  // with this many calls under way, requests are batched
constexpr std::size_t kMaxBatchBytes = 8 << 10;  // the most bytes of a batch

std::uint32_t to_ms(std::chrono::nanoseconds time) {
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(time).count();
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(ms, 0, UINT32_MAX));
}

}  // namespace

Caller::Caller(SetupPointer setup, std::shared_ptr<Pool> pool, std::string name,
               SessionLost session_lost)
    : setup_(std::move(setup)),
      pool_(std::move(pool)),
      name_(std::move(name)),
      session_lost_(std::move(session_lost)),
      lease_(setup_->lease),
      max_calls_(setup_->max_calls),
      max_bytes_(setup_->max_bytes),
      max_message_(setup_->max_message),
      pause_(kShortestPause) {}

// ---- calls of the program ----

void Caller::check_size(const CallTarget& target, const Outgoing& request) const {
  const std::size_t size = request.writer().size();
  check(size <= max_message_,
        "{}: a message of {} bytes for {} of worker {} is above the limit of {} bytes; send it in "
        "pieces, or raise JoinOptions::max_message of both workers",
        setup_->self.name, size, target.method, name_, max_message_);
}

bool Caller::has_credit(std::size_t size) const {
  return calls_.size() < max_calls_ &&
         (bytes_under_way_ == 0 || bytes_under_way_ + size <= max_bytes_);
}

PendingPointer Caller::call(const CallTarget& target, OutgoingPointer request, Deadline deadline,
                            std::function<void(CallEnd)> when_ended) {
  const std::size_t size = request->writer().size();
  auto call = std::make_shared<PendingCall>(target, std::move(request), deadline);
  call->size_ = size;
  call->when_ended_ = std::move(when_ended);
  Lock lock(mutex_);
  check_size(target, *call->request_);
  if (!is_closed_ && target.needs_credit && (!without_credit_.empty() || !has_credit(size))) {
    wait_for_credit(lock, call);
    if (call->number_ != 0) return call;
    check_size(target, *call->request_);  // the limit may be known only now
    refuse_locked(*call);
    return call;
  }
  if (is_closed_) {
    refuse_locked(*call);
    return call;
  }
  begin_locked(call);
  // No thread waited for the previous call, so perhaps none will wait for this one, and the pool
  // must read its reply.
  if (connection_ && !is_watched_ && !was_waited_for_) watch_locked(true);
  if (std::exchange(was_waited_for_, false) || calls_.size() < kMany) {
    send(lock);
  } else {
    send_soon(lock, size);
  }
  return call;
}

// Requires: the mutex is held, and the call needs no credit or there is enough.
void Caller::begin_locked(const PendingPointer& call) {
  const CallTarget& target = call->target_;
  call->mark_ = setup_->stats.begin(CallSide::kCaller, target.method_number, target.method);
  bytes_under_way_ += call->size_;
  steps_.clear();
  call->number_ = session_.begin(target.effect, target.scope, steps_);
  calls_.emplace_hint(calls_.end(), call->number_, call);
  carry_out(steps_);
  if (!connection_) want_connection_locked(0ms);
}

// Ends a call that has not begun. Requires: the mutex is held.
void Caller::refuse_locked(PendingCall& call) {
  call.error_ =
      CallError(is_closed_ ? ErrorCode::kInvalid : ErrorCode::kTimeout, CallError::Executed::kNo,
                name_, std::string(call.target_.method),
                fmt::format("{}: {} of worker {} was not sent: {}; it was not executed",
                            setup_->self.name, call.target_.method, name_,
                            is_closed_ ? "this worker has left"
                                       : fmt::format("it waited until its deadline for {} to "
                                                     "that worker to end",
                                                     counted(calls_.size(), "call"))),
                is_closed_ ? std::nullopt : call.deadline_.timeout());
  if (call.when_ended_) call.when_ended_(CallEnd::kNotExecuted);
  call.end();
}

// Returns when the call has begun, when it cannot begin, or at its deadline. Releases the lock
// while it waits. Requires: the lock is held.
void Caller::wait_for_credit(Lock& lock, const PendingPointer& call) {
  const Pool::Blocked blocked;
  without_credit_.push_back(call);
  send(lock);
  wait_until(call, PendingCall::kOutOfQueue, call->deadline_);
  lock.lock();
  if (!call->has(PendingCall::kOutOfQueue)) std::erase(without_credit_, call);
}

// Begins the waiting calls for which there is credit, and ends the wait of calls that cannot begin.
// Returns the bytes of the requests that it has queued. Requires: the mutex is held.
std::size_t Caller::begin_queued_calls_locked() {
  std::size_t size = 0;
  while (!without_credit_.empty()) {
    const PendingPointer call = without_credit_.front();
    const bool cannot_begin = is_closed_ || call->deadline_.expired() || call->size_ > max_message_;
    if (!cannot_begin && !has_credit(call->size_)) break;
    without_credit_.pop_front();
    if (!cannot_begin) {
      begin_locked(call);
      size += call->size_ + kFrameBytes;
    }
    call->leave_queue(/*wakes=*/cannot_begin || without_credit_.size() < kMany);
  }
  return size;
}

void Caller::tell(const CallTarget& target, OutgoingPointer request) {
  Lock lock(mutex_);
  check_size(target, *request);
  const std::size_t size = request->writer().size();
  const std::uint64_t bytes = bytes_told_ - bytes_handled_;
  const bool is_full =
      num_told_ - num_handled_ >= max_calls_ || (bytes > 0 && bytes + size > max_bytes_);
  if (is_closed_ || is_full) {
    throw CallError(
        ErrorCode::kSystem, CallError::Executed::kNo, name_, std::string(target.method),
        fmt::format("{}: {} of worker {} was not sent: {}", setup_->self.name, target.method, name_,
                    is_closed_
                        ? "this worker has left"
                        : fmt::format("that worker still has {} to handle; send more slowly{}",
                                      counted(num_told_ - num_handled_, "message"),
                                      connection_ ? "" : " (" + why_ + ")")));
  }
  ++num_told_;
  bytes_told_ += size;
  to_tell_.emplace_back(Frame{.kind = FrameKind::kTell,
                              .effect = target.effect,
                              .method = target.method_number,
                              .object = target.object},
                        std::move(request));
  if (!connection_) want_connection_locked(0ms);
  if (num_told_ - num_handled_ < kMany) {
    send(lock);
  } else {
    send_soon(lock, size);
  }
}

void Caller::give_up(const PendingPointer& call) {
  Lock lock(mutex_);
  steps_.clear();
  session_.give_up(call->number_, steps_);
  carry_out(steps_);
  if (!without_credit_.empty()) send(lock);
}

// ---- carrying out the session's steps ----

// Requires: the mutex is held.
void Caller::carry_out(const CallerSession::Steps& steps) {
  for (const auto& step : steps) {
    using Kind = CallerSession::Step::Kind;
    Frame frame{.session = session_.session(), .number = step.number};
    switch (step.kind) {
      case Kind::kOpen:
        opening_sent_ = boot_time();
        frame.kind = FrameKind::kOpen;
        frame.number = session_.connection();
        connection_->queue(frame, make_outgoing(setup_->self.hello()));
        break;
      case Kind::kResume: {
        opening_sent_ = boot_time();
        const auto sent = session_.sent();
        auto list = std::make_shared<OutgoingBytes>();
        list->to().put_bytes(std::as_bytes(std::span(sent)));
        frame.kind = FrameKind::kResume;
        frame.number = session_.connection();
        connection_->queue(frame, list);
        break;
      }
      case Kind::kRequest:
        send_request(*calls_.at(step.number));
        break;
      case Kind::kAcknowledge:
        to_acknowledge_.push_back(step.number);
        break;
      case Kind::kEnded:
        finish(step.number, step.end);
        break;
    }
  }
}

void Caller::send_request(PendingCall& call) {
  Frame frame{.kind = FrameKind::kRequest,
              .effect = call.target_.effect,
              .time_left_ms = to_ms(call.deadline_.remaining()),
              .number = call.number_,
              .method = call.target_.method_number,
              .object = call.target_.object};
  if (!to_acknowledge_.empty()) {
    frame.acknowledged = to_acknowledge_.back();
    to_acknowledge_.pop_back();
  }
  connection_->queue(frame, call.request_);
}

PendingPointer Caller::remove_locked(CallNumber number) {
  const auto node = calls_.extract(number);
  if (node.empty()) return {};
  bytes_under_way_ -= node.mapped()->size_;
  return node.mapped();
}

// Requires: the mutex is held.
void Caller::finish(CallNumber number, CallEnd end) {
  const PendingPointer call = remove_locked(number);
  if (!call) return;
  count_end(*call, /*failed=*/true);
  if (connection_ && call->request_) connection_->own(*call->request_);
  call->request_.reset();
  const CallError error = error_of(call->target_, call->deadline_, end);
  if (call->target_.object != 0 && end == CallEnd::kNotExecuted &&
      error.code() == ErrorCode::kPeerLost) {
    using Reason = ReferenceError::Reason;
    call->reference_error_.emplace(is_callee_gone_ ? Reason::kOwnerLost : Reason::kExpired, name_,
                                   std::string(call->target_.method), error.what());
  }
  call->error_ = error;
  if (call->when_ended_) call->when_ended_(end);
  call->end();
}

CallError Caller::error_of(const CallTarget& target, Deadline deadline, CallEnd end) const {
  const bool is_late = deadline.expired();
  const bool did_not_run = end == CallEnd::kNotExecuted;
  return {
      is_late ? ErrorCode::kTimeout : why_code_,
      did_not_run ? CallError::Executed::kNo : CallError::Executed::kUnknown,
      name_,
      std::string(target.method),
      fmt::format("{}: {} of worker {} failed: {}{}; {}", setup_->self.name, target.method, name_,
                  is_late ? "no reply before its deadline" : why_,
                  is_late && !why_.empty() ? " (" + why_ + ")" : "",
                  did_not_run ? "it was not executed" : "it is unknown whether it was executed"),
      is_late ? deadline.timeout() : std::nullopt};
}

void Caller::queue_acknowledgements_locked() {
  if (to_acknowledge_.empty()) return;
  auto list = std::make_shared<OutgoingBytes>();
  list->to().put_bytes(std::as_bytes(std::span(to_acknowledge_)));
  connection_->queue({.kind = FrameKind::kAcknowledge}, list);
  to_acknowledge_.clear();
}

// Requires: the mutex is held.
void Caller::queue_waiting_messages_locked() {
  begin_queued_calls_locked();
  if (!connection_ || session_.session() == 0) return;
  if (to_acknowledge_.size() >= kMaxAcknowledgements) queue_acknowledgements_locked();
  for (; !to_tell_.empty(); to_tell_.pop_front()) {
    connection_->queue(to_tell_.front().first, to_tell_.front().second);
  }
}

// Leaves the queued messages unsent for a moment, unless they exceed a batch; `size` is the size of
// the new ones. Releases the lock. Requires: the lock is held.
void Caller::send_soon(Lock& lock, std::size_t size) {
  queue_waiting_messages_locked();
  const bool is_first = batched_bytes_ == 0;
  if (!connection_ || batched_bytes_ + size + kFrameBytes > kMaxBatchBytes) return send(lock);
  batched_bytes_ += size + kFrameBytes;
  lock.unlock();
  if (is_first) pool_->send_soon(shared_from_this());
}

void Caller::send() {
  Lock lock(mutex_);
  if (batched_bytes_ > 0) send(lock);
}

// Sends the queued messages. Releases the lock. Requires: the lock is held.
void Caller::send(Lock& lock) {
  queue_waiting_messages_locked();
  const ConnectionPointer connection = connection_;
  batched_bytes_ = 0;
  lock.unlock();
  if (!connection) return;
  if (!connection->flush()) return connection->shut_down();  // the reading thread then sees the end
  if (!connection->has_unsent()) return;
  lock.lock();
  if (connection == connection_ && !is_sending_) update_events_locked();
  lock.unlock();
}

// ---- leases and the end ----

bool Caller::lease_counts() const {
  const Lock lock(mutex_);
  return !had_session_ || lease_.counts(boot_time());
}

std::string Caller::incarnation() const {
  const Lock lock(mutex_);
  return incarnation_;
}

bool Caller::is_callee_gone() const {
  const Lock lock(mutex_);
  return is_callee_gone_;
}

std::size_t Caller::num_calls() const {
  const Lock lock(mutex_);
  return calls_.size();
}

std::size_t Caller::max_message() const {
  const Lock lock(mutex_);
  return max_message_;
}

void Caller::count_end(PendingCall& call, bool failed) const {
  setup_->stats.end(CallSide::kCaller, call.mark_,
                    {.method = call.target_.method,
                     .other = name_,
                     .caller = setup_->self.incarnation,
                     .callee = name_,
                     .number = call.number_},
                    failed);
}

// The map is in the order in which the calls began, so the first young call ends the loop.
void Caller::collect_open(std::vector<OpenCall>& open) const {
  const std::uint64_t now = record_time();
  const Lock lock(mutex_);
  const bool is_connected = connection_ && session_.session() != 0;
  for (const auto& [number, call] : calls_) {
    const std::uint64_t begun = call->mark_.begun;
    if (begun == 0 || now < begun + CallGauge::kLong || open.size() == CallGauge::kMaxOpen) return;
    open.push_back({.worker = setup_->self.name,
                    .other = name_,
                    .method = std::string(call->target_.method),
                    .number = number,
                    .caller = worker_hash(setup_->self.incarnation),
                    .begun = begun,
                    .state = is_connected ? OpenState::kSent : OpenState::kNotSent});
  }
}

void Caller::look() {
  Lock lock(mutex_);
  std::vector<CallNumber> late;
  for (const auto& [number, call] : calls_) {
    if (call->deadline_.expired()) late.push_back(number);
  }
  CallerSession::Steps steps;
  for (const CallNumber number : late) session_.give_up(number, steps);
  carry_out(steps);
  if (connect_at_ && connect_at_->expired()) want_connection_locked(0ms);
  if (!connection_) return;
  const auto now = boot_time();
  if (const auto due = lease_.renewal_due(); due && now >= *due && session_.session() != 0) {
    lease_.renewal_sent(now);
    connection_->queue_urgent({.kind = FrameKind::kRenew, .session = session_.session()});
  }
  if (session_.session() != 0) queue_acknowledgements_locked();
  if (!is_watched_) watch_locked(true);
  send(lock);
}

Caller::Begun Caller::begun() const {
  const Lock lock(mutex_);
  return {session_.last_call(), num_told_};
}

// Ends the calls and drops the one-way messages that were made before the callee was found to be
// gone. Later calls and messages are for another process that has taken the callee's name.
void Caller::end_all(const std::string& why, ErrorCode code, const Begun& begun) {
  bool lost = false;
  std::string incarnation;
  {
    const Lock lock(mutex_);
    is_connecting_ = false;
    why_ = why;
    why_code_ = code;
    is_callee_gone_ = true;
    CallerSession::Steps steps;
    session_.give_up_all(begun.last_call, steps);
    carry_out(steps);
    while (to_tell_.size() > num_told_ - begun.num_told) to_tell_.pop_front();
    num_told_ = to_tell_.size();
    bytes_told_ = num_handled_ = bytes_handled_ = 0;
    for (const auto& told : to_tell_) bytes_told_ += told.second->writer().size();
    lost = std::exchange(had_session_, false);
    incarnation = std::exchange(incarnation_, {});
    // A later process of this name needs a new session, which its connection opens.
    if (session_.session() != 0) {
      steps.clear();
      session_.refused(session_.session(), steps);
      steps.pop_back();
      carry_out(steps);
    }
    begin_queued_calls_locked();
    if (!calls_.empty() || !to_tell_.empty()) want_connection_locked(0ms);
  }
  if (lost) session_lost_(incarnation);
}

void Caller::close() {
  ConnectionPointer connection;
  {
    const Lock lock(mutex_);
    if (std::exchange(is_closed_, true)) return;
    connection = connection_;
  }
  end_all("this worker is leaving", ErrorCode::kInvalid, begun());
  if (!connection) return;
  connection->queue({.kind = FrameKind::kGoodbye});
  connection->flush();
  disconnect(connection, "this worker is leaving");
}

}  // namespace paceline::rpc
