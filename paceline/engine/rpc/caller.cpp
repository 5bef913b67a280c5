#include "paceline/engine/rpc/caller.h"

#include <algorithm>
#include <cerrno>

#include <sys/epoll.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/counted.h"
#include "paceline/engine/core/log.h"

namespace paceline::rpc {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::nanoseconds kNap = 100ms;
constexpr std::size_t kMostAcknowledgements = 64;
constexpr int kLedOften = 4;
constexpr std::size_t kMostReplies = 256;   // that are taken together
constexpr std::size_t kMany = 4;            // calls under way
constexpr std::size_t kMostLeft = 8 << 10;  // bytes that are sent together

std::uint32_t to_ms(std::chrono::nanoseconds time) {
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(time).count();
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(ms, 0, UINT32_MAX));
}

}  // namespace

Caller::Caller(SetupPointer setup, std::shared_ptr<Pool> pool, std::string name,
               std::function<void()> session_lost)
    : setup_(std::move(setup)),
      pool_(std::move(pool)),
      name_(std::move(name)),
      session_lost_(std::move(session_lost)),
      lease_(setup_->lease),
      max_calls_(setup_->max_calls),
      max_bytes_(setup_->max_bytes),
      max_message_(setup_->max_message),
      pause_(kShortestPause) {}

// ---- what a program asks for ----

void Caller::check_size(const CallTarget& target, const Outgoing& request) const {
  const std::size_t size = request.writer().size();
  check(size <= max_message_,
        "{}: a message of {} bytes for {} of worker {} is above the limit of {} bytes; send it in "
        "pieces, or raise JoinOptions::max_message of both workers",
        setup_->self.name, size, target.method, name_, max_message_);
}

bool Caller::has_room(std::size_t size) const {
  return calls_.size() < max_calls_ &&
         (bytes_under_way_ == 0 || bytes_under_way_ + size <= max_bytes_);
}

void Caller::wait_for_room(Lock& lock, std::size_t size, Deadline deadline) {
  if (left_bytes_ > 0) {
    send(lock);
    lock.lock();
  }
  while (!is_closed_ && !has_room(size) && !deadline.expired()) {
    lock.unlock();
    const bool led = lead(deadline);
    lock.lock();
    if (!led && !has_room(size)) {
      const Pool::Blocked blocked;
      has_room_.wait_for(lock, std::min(deadline.remaining(), kNap));
    }
  }
}

PendingPointer Caller::call(const CallTarget& target, OutgoingPointer request, Deadline deadline,
                            std::function<void(CallEnd)> when_ended) {
  const std::size_t size = request->writer().size();
  auto call = std::make_shared<PendingCall>(target, std::move(request), deadline);
  Lock lock(mutex_);
  check_size(target, *call->request_);
  const bool needs_room = target.needs_credit;
  if (needs_room && !has_room(size)) wait_for_room(lock, size, deadline);
  if (is_closed_ || (needs_room && !has_room(size))) {
    call->error_ =
        CallError(is_closed_ ? ErrorCode::kInvalid : ErrorCode::kTimeout, Executed::kNo, name_,
                  std::string(target.method),
                  fmt::format("{}: {} of worker {} was not sent: {}; it was not executed",
                              setup_->self.name, target.method, name_,
                              is_closed_ ? "this worker has left"
                                         : fmt::format("{} to it were under way until the deadline",
                                                       counted(calls_.size(), "call"))));
    if (when_ended) when_ended(CallEnd::kNotExecuted);
    call->end();
    return call;
  }
  call->when_ended_ = std::move(when_ended);
  call->mark_ = setup_->stats.begin(CallSide::kCaller, target.method_number, target.method);
  call->size_ = size;
  bytes_under_way_ += size;
  steps_.clear();
  call->number_ = session_.begin(target.effect, target.scope, steps_);
  calls_.emplace_hint(calls_.end(), call->number_, call);
  carry_out(steps_);
  if (!connection_) want_connection_locked(0ms);
  // Nobody waited for the call before: perhaps nobody waits for this one either.
  if (connection_ && !is_watched_ && !was_waited_for_) watch_locked(true);
  if (std::exchange(was_waited_for_, false) || calls_.size() < kMany) {
    send(lock);
  } else {
    send_soon(lock, size);
  }
  return call;
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
        ErrorCode::kSystem, Executed::kNo, name_, std::string(target.method),
        fmt::format("{}: {} of worker {} was not told: {}", setup_->self.name, target.method, name_,
                    is_closed_ ? "this worker has left"
                               : fmt::format("{} wait for its handlers; slow down{}",
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
}

// ---- reading replies ----

void Caller::wait(PendingCall& call, Deadline deadline) {
  if (call.done()) return;
  const Pool::Blocked blocked;
  {
    Lock lock(mutex_);
    was_waited_for_ = true;
    if (left_bytes_ > 0) send(lock);
  }
  while (!call.done() && !deadline.expired()) {
    if (lead(deadline)) continue;
    {
      const Lock lock(mutex_);
      const auto found = calls_.find(call.number_);
      if (found != calls_.end()) waiting_.push_back(found->second);
    }
    // The thread that reads hands over when it is done: to this one, or it was done before.
    if (!lead(deadline)) call.sleep(std::min(deadline.remaining(), kNap));
    const Lock lock(mutex_);
    std::erase_if(waiting_, [&](const PendingPointer& other) { return other.get() == &call; });
  }
}

// Reads the socket once, if no other thread does and there is a connection; otherwise returns
// false.
bool Caller::lead(Deadline deadline) {
  std::unique_lock receiving(receiving_, std::try_to_lock);
  if (!receiving) return false;
  ConnectionPointer connection;
  {
    const Lock lock(mutex_);
    connection = connection_;
    if (connection && is_watched_ && ++num_led_ >= kLedOften) watch_locked(false);
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
    if (left_bytes_ > 0) send(lock);
  }
  if (connection) receive(connection, nullptr);
  receiving.unlock();
  hand_over();
}

// This thread has stopped reading: another one that waits goes on, or the pool.
void Caller::hand_over() {
  const bool has_missed = has_missed_.exchange(false);
  const Lock lock(mutex_);
  if (!connection_) return;  // there is nothing to read, and whoever waits sleeps
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
  // What waits to be sent goes on also while another thread waits for a reply.
  ConnectionPointer connection;
  {
    const Lock lock(mutex_);
    connection = connection_;
    num_led_ = 0;
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
    has_missed_ = true;  // whoever reads looks at it afterwards, unless it has just stopped
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

// Requires: this thread holds receiving_. False when the connection has ended.
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
  num_led_ = 0;
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
    // They bring only acknowledgements, which can wait for the next request.
    if (to_acknowledge_.size() >= kMostAcknowledgements) send(lock);
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
    if (replies_.size() == kMostReplies) take_replies();
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
      why_ = "the worker does not know the session any more";
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
      fail(ErrorCode::kCorrupt, "a worker sent a caller's frame");
  }
  carry_out(steps_);
  // What was wrong with the way to the callee is over.
  if (frame.kind == FrameKind::kOpened || frame.kind == FrameKind::kResumed) why_.clear();
  send(lock);
  if (lost) session_lost_();
}

void Caller::take_credit(const Frame& frame) {
  max_calls_ = std::max<std::size_t>(frame.max_calls, 1);
  max_bytes_ = frame.method;
  lease_ = CallerLease(std::chrono::milliseconds(frame.time_left_ms));  // the callee's counts
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

// ---- what the session says ----

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
  has_room_.notify_one();
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
      is_late ? ErrorCode::kTimeout : why_code_, did_not_run ? Executed::kNo : Executed::kUnknown,
      name_, std::string(target.method),
      fmt::format("{}: {} of worker {} failed: {}{}; {}", setup_->self.name, target.method, name_,
                  is_late ? "no reply before its deadline" : why_,
                  is_late && !why_.empty() ? " (" + why_ + ")" : "",
                  did_not_run ? "it was not executed" : "it is unknown whether it was executed")};
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
  call.error_.emplace(code, ran ? Executed::kYes : Executed::kNo, name_, method, message);
}

CallError Caller::unreadable_reply(const PendingCall& call, const std::string& why) const {
  const std::string method(call.target().method);
  return {ErrorCode::kCorrupt, Executed::kYes, name_, method,
          fmt::format("{}: {} of worker {} was executed, and its reply cannot be read: {}",
                      setup_->self.name, method, name_, why)};
}

void Caller::queue_acknowledgements_locked() {
  if (to_acknowledge_.empty()) return;
  auto list = std::make_shared<OutgoingBytes>();
  list->to().put_bytes(std::as_bytes(std::span(to_acknowledge_)));
  connection_->queue({.kind = FrameKind::kAcknowledge}, list);
  to_acknowledge_.clear();
}

// Requires: the mutex is held.
void Caller::queue_what_waits_locked() {
  if (!connection_ || session_.session() == 0) return;
  if (to_acknowledge_.size() >= kMostAcknowledgements) queue_acknowledgements_locked();
  for (; !to_tell_.empty(); to_tell_.pop_front()) {
    connection_->queue(to_tell_.front().first, to_tell_.front().second);
  }
}

// Leaves what is queued, of which `size` bytes are new, for a moment. Releases the lock. Requires:
// it is held.
void Caller::send_soon(Lock& lock, std::size_t size) {
  queue_what_waits_locked();
  const bool is_first = left_bytes_ == 0;
  if (!connection_ || left_bytes_ + size + kFrameBytes > kMostLeft) return send(lock);
  left_bytes_ += size + kFrameBytes;
  lock.unlock();
  if (is_first) pool_->send_soon(shared_from_this());
}

void Caller::send() {
  Lock lock(mutex_);
  if (left_bytes_ > 0) send(lock);
}

// Sends what is queued. Releases the lock. Requires: it is held.
void Caller::send(Lock& lock) {
  queue_what_waits_locked();
  const ConnectionPointer connection = connection_;
  left_bytes_ = 0;
  lock.unlock();
  if (!connection) return;
  if (!connection->flush()) return connection->shut_down();  // whoever reads sees the end
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

// Those of one caller are in the order in which they began.
void Caller::collect_open(std::vector<OpenCall>& open) const {
  const std::uint64_t now = record_time();
  const Lock lock(mutex_);
  const bool is_connected = connection_ && session_.session() != 0;
  for (const auto& [number, call] : calls_) {
    const std::uint64_t begun = call->mark_.begun;
    if (begun == 0 || now < begun + CallGauge::kLong || open.size() == CallGauge::kMostOpen) return;
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

void Caller::end_all(const std::string& why, ErrorCode code, bool is_gone) {
  bool lost = false;
  {
    const Lock lock(mutex_);
    why_ = why;
    why_code_ = code;
    is_callee_gone_ = is_gone;
    CallerSession::Steps steps;
    session_.give_up_all(steps);
    carry_out(steps);
    to_tell_.clear();
    num_told_ = bytes_told_ = num_handled_ = bytes_handled_ = 0;
    if (is_gone) {
      lost = std::exchange(had_session_, false);
      incarnation_.clear();
      // The next process of this name is asked for a session of its own.
      steps.clear();
      if (session_.session() != 0) session_.refused(session_.session(), steps);
    }
    has_room_.notify_all();
  }
  if (lost) session_lost_();
}

void Caller::close() {
  ConnectionPointer connection;
  {
    const Lock lock(mutex_);
    if (std::exchange(is_closed_, true)) return;
    connection = connection_;
  }
  end_all("this worker leaves", ErrorCode::kInvalid, true);
  if (!connection) return;
  connection->queue({.kind = FrameKind::kGoodbye});
  connection->flush();
  disconnect(connection, "this worker leaves");
}

}  // namespace paceline::rpc
