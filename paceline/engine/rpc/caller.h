#pragma once

// The calls of this worker at one other: one call under way (PendingCall), and the Caller that
// sends requests, reads replies (caller_replies.cpp), and makes the connection anew when it is lost
// (caller_connect.cpp).

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/rpc/call_error.h"
#include "paceline/engine/rpc/pool.h"
#include "paceline/engine/rpc/protocol/connection.h"
#include "paceline/engine/rpc/protocol/frame.h"
#include "paceline/engine/rpc/protocol/session.h"
#include "paceline/engine/rpc/setup.h"

namespace paceline::rpc {

// The method of a call, and how it is called.
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

// A call under way, as its caller sees it. Its result is written once, before done() is true.
//
// Thread safety: all methods.
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
  // Called by the one thread that waits: returns when the call is done, another thread nudges it,
  // or the time has passed.
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

// The calls of this worker at one other: carries out what CallerSession says. The connection is
// made at the first call, by a thread of the pool, and made again when it is lost.
//
// Who reads replies. The thread that waits for a reply reads the socket itself if no other does,
// also for the others, and hands over to one of them when it is done. If calls are under way for
// which nobody waits, the pool watches the socket ("watched"). A program that waits for each call
// at once would pay for changes of the watch with every call, so the pool is left out of it for up
// to a tenth of a second at a time.
//
// Who sends. A call goes out at once, unless several are under way for which nobody waits yet: then
// it goes with those that follow, at the latest when somebody waits or the pool sends it
// (Pool::send_soon). So calls in a row share a system call.
//
// Thread safety: all methods.
class Caller final : public Pool::Source,
                     public Pool::Sender,
                     public Connection::Receiver,
                     public std::enable_shared_from_this<Caller> {
 public:
  // `session_lost` is called when the callee keeps nothing of this worker any more; it must not
  // throw and must not call this object.
  Caller(SetupPointer setup, std::shared_ptr<Pool> pool, std::string name,
         std::function<void()> session_lost);

  const std::string& name() const { return name_; }
  bool is_self() const { return name_ == setup_->self.name; }

  // Waits, until the deadline, for room among the calls that may be under way. Error(kInvalid) for
  // a message above the limit. `request` and what it refers to must live until the call is done.
  // `when_ended` must not throw and must not call this object.
  PendingPointer call(const CallTarget& target, OutgoingPointer request, Deadline deadline,
                      std::function<void(CallEnd)> when_ended = {});
  // CallError(kSystem), not executed, when too much of what was told before is under way.
  void tell(const CallTarget& target, OutgoingPointer request);
  // Returns when the call is done or the deadline has passed.
  void wait(PendingCall& call, Deadline deadline);
  // Reads what has arrived, unless another thread is reading.
  void pump();
  // The error for a reply that is of another type than the program expects.
  CallError unreadable_reply(const PendingCall& call, const std::string& why) const;
  // Ends a call that is not done, as its deadline would.
  void give_up(const PendingPointer& call);

  // Whether the callee still keeps what belongs to this worker's session; true also before the
  // first one.
  bool lease_counts() const;
  // The incarnation of the callee that was connected last; empty before.
  std::string incarnation() const;
  bool is_callee_gone() const;
  std::size_t num_calls() const;
  // Bytes that a message may have, as far as the callee's own limit is known.
  std::size_t max_message() const;
  // Adds the calls that have been under way for long, if a gauge or a timeline is on.
  void collect_open(std::vector<OpenCall>& open) const;

  // Deadlines, renewals and new connections; about ten times a second.
  void look();
  // Says goodbye. Calls under way end.
  void close();

  int descriptor() const override { return descriptor_; }
  void ready() override;
  void send() override;
  void take(const Frame& frame, Payload payload) override;

 private:
  using Lock = std::unique_lock<std::mutex>;
  using ConnectionPointer = std::shared_ptr<Connection>;
  // Between two attempts to connect.
  static constexpr std::chrono::milliseconds kShortestPause{10}, kLongestPause{1000};
  static constexpr std::chrono::milliseconds kNap{100};  // of a thread that waits, at most
  static constexpr std::size_t kMostAcknowledgements = 64;

  void wait_for_room(Lock& lock, std::size_t size, Deadline deadline);
  bool has_room(std::size_t size) const;
  void check_size(const CallTarget& target, const Outgoing& request) const;

  bool lead(Deadline deadline);
  void hand_over();
  bool receive(const ConnectionPointer& connection, const Deadline* deadline);
  void take_replies();
  void watch_locked(bool watched);
  void update_events_locked();

  void connect();
  void connect_to(const WorkerEntry& callee);
  std::pair<Fd, std::unique_ptr<Cipher>> make_connection(const WorkerEntry& callee);
  void want_connection_locked(std::chrono::milliseconds delay);
  void connection_failed(ErrorCode code, const std::string& why);
  void disconnect(const ConnectionPointer& connection, const std::string& why);
  void end_all(const std::string& why, ErrorCode code, bool is_gone);
  void end_what_is_too_large_locked();

  void carry_out(const CallerSession::Steps& steps);
  void send_request(PendingCall& call);
  void finish(CallNumber number, CallEnd end);
  void count_end(PendingCall& call, bool failed) const;
  PendingPointer remove_locked(CallNumber number);
  void take_credit(const Frame& frame);
  void take_resumed(const Payload& payload);
  CallError error_of(const CallTarget& target, Deadline deadline, CallEnd end) const;
  void set_failed_reply(PendingCall& call, ReplyStatus status, const Payload& text) const;
  void send(Lock& lock);
  void send_soon(Lock& lock, std::size_t size);
  void queue_acknowledgements_locked();
  void queue_what_waits_locked();

  const SetupPointer setup_;
  const std::shared_ptr<Pool> pool_;
  const std::string name_;
  const std::function<void()> session_lost_;

  struct Reply {
    Frame frame;
    Payload payload;
    PendingPointer call{};
  };
  std::mutex receiving_;                 // held by the thread that reads the socket
  std::vector<Reply> replies_;           // of that thread: they are taken together
  std::atomic<bool> has_missed_{false};  // an event came while another thread read

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable has_room_;
  CallerSession session_;
  CallerSession::Steps steps_;  // memory for them
  CallerLease lease_;
  LeaseTime opening_sent_{};
  bool had_session_ = false;
  std::map<CallNumber, PendingPointer> calls_;
  std::size_t bytes_under_way_ = 0, max_calls_, max_bytes_, max_message_;
  std::uint64_t num_told_ = 0, bytes_told_ = 0, num_handled_ = 0, bytes_handled_ = 0;
  std::size_t left_bytes_ = 0;  // queued, to be sent with what follows
  std::vector<CallNumber> to_acknowledge_;
  std::deque<std::pair<Frame, OutgoingPointer>> to_tell_;  // once there is a session
  std::vector<PendingPointer> waiting_;                    // that another thread reads for
  ConnectionPointer connection_;
  std::string incarnation_;
  std::atomic<int> descriptor_{-1};
  bool is_watched_ = false, is_sending_ = false;  // as the pool knows it
  bool was_waited_for_ = false;                   // the last call, at once
  int num_led_ = 0;                               // in a row, while watched
  bool is_connecting_ = false, is_closed_ = false, is_callee_gone_ = false;
  std::optional<Deadline> connect_at_;
  std::chrono::milliseconds pause_;  // before the next attempt
  std::string why_ = "no connection has been made yet";
  ErrorCode why_code_ = ErrorCode::kTimeout;
};

}  // namespace paceline::rpc
