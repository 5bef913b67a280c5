#pragma once

// The calls of this worker to one other worker: PendingCall is one call under way; Caller sends
// requests, reads replies (caller_replies.cpp), and reconnects when the connection is lost
// (caller_connect.cpp).

#include <atomic>
#include <chrono>
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

// A call under way, as its caller sees it. The result is written once, before done() becomes true.
//
// Thread safety: every method may be called from any thread.
class PendingCall {
 public:
  PendingCall(const CallTarget& target, OutgoingPointer request, Deadline deadline)
      : target_(target), deadline_(deadline), request_(std::move(request)) {}
  PendingCall(const PendingCall&) = delete;
  PendingCall& operator=(const PendingCall&) = delete;

  bool done() const { return has(kDone); }
  const CallTarget& target() const { return target_; }
  Deadline deadline() const { return deadline_; }
  // Returns the reply, or throws the error of the call. Requires: done().
  Payload& reply();
  const std::optional<ReferenceError>& reference_error() const { return reference_error_; }

 private:
  friend class Caller;
  static constexpr std::uint32_t kDone = 1, kNudged = 2, kSleeps = 4, kOutOfQueue = 8;
  bool has(std::uint32_t states) const {
    return (state_.load(std::memory_order_acquire) & states) != 0;
  }
  // Makes done() true. Requires: the result is set, and the caller of end() holds a pointer to the
  // call.
  void end();
  // Called by the one thread that waits for the call. Blocks until the call is done, another thread
  // calls nudge(), or `limit` has passed. Returns whether nudge() was called.
  bool sleep(std::chrono::nanoseconds limit);
  void nudge();
  // Called when the call leaves the queue of calls that wait for credit. Wakes the thread that made
  // the call if `wakes`; otherwise that thread sleeps on until the call is done.
  void leave_queue(bool wakes);

  const CallTarget target_;
  const Deadline deadline_;
  CallNumber number_ = 0;
  std::size_t size_ = 0;  // bytes of the request, which count against the credit
  CallMark mark_;
  OutgoingPointer request_;
  Payload reply_;
  std::optional<CallError> error_;
  std::optional<ReferenceError> reference_error_;
  std::function<void(CallEnd)> when_ended_;  // called under Caller::mutex_; may be empty
  std::atomic<std::uint32_t> state_{0};
};
using PendingPointer = std::shared_ptr<PendingCall>;

// The calls of this worker to one worker, perhaps itself; carries out the steps of CallerSession. A
// thread of the pool makes the connection at the first call, and again whenever it is lost.
//
// Reading. A thread that waits for a reply reads the socket itself, unless another thread is
// reading. It also takes the replies of other calls, and hands the reading over to another waiting
// thread when its own reply has arrived. If no thread waits for the calls under way, the pool
// watches the socket ("watched"). A program that waits for each call before it begins the next one
// would switch the watching on and off with every call, so the pool then leaves the socket
// unwatched for up to a tenth of a second at a time.
//
// Credit is the number of calls, and of bytes of requests, that may be under way at once. Further
// calls wait in a queue; the thread that ends a call sends the next ones. If many calls wait, the
// thread that made a sent call sleeps on until the reply arrives: its next call would wait as well.
//
// Sending. A request is sent immediately, unless several calls are under way and no thread has
// waited since the last call. In that case it is sent together with later requests, at the latest
// when a thread waits or the pool sends it (Pool::send_soon): the calls share a system call.
//
// Thread safety: every method may be called from any thread.
class Caller final : public Pool::Source,
                     public Pool::Sender,
                     public Connection::Receiver,
                     public std::enable_shared_from_this<Caller> {
 public:
  // `session_lost` is called when the callee's `incarnation` (WorkerEntry) no longer keeps any
  // state of this worker. The function must not throw and must not call this object.
  using SessionLost = std::function<void(const std::string& incarnation)>;
  Caller(SetupPointer setup, std::shared_ptr<Pool> pool, std::string name,
         SessionLost session_lost);

  const std::string& name() const { return name_; }
  bool is_self() const { return name_ == setup_->self.name; }

  // Begins a call; while the credit is used up, first waits, at most until the deadline. Throws
  // Error(kInvalid) for a message above the limit. The memory that `request` refers to must live
  // until the call is done. `when_ended` is called at the end of the call; it must not throw and
  // must not call this object.
  PendingPointer call(const CallTarget& target, OutgoingPointer request, Deadline deadline,
                      std::function<void(CallEnd)> when_ended = {});
  // Sends a one-way message, which must own its memory. Throws Error(kInvalid) as call() does, and
  // CallError(kSystem), not executed, if this worker has left or too many one-way messages wait.
  void tell(const CallTarget& target, OutgoingPointer request);
  // Returns when the call is done or the deadline has passed.
  void wait(const PendingPointer& call, Deadline deadline);
  // Reads the replies that have arrived, unless another thread is reading.
  void pump();
  // The error for a reply that does not have the type that the program expects.
  CallError unreadable_reply(const PendingCall& call, const std::string& why) const;
  // Ends a call that is not done, as if its deadline had passed.
  void give_up(const PendingPointer& call);

  // Whether the callee still keeps the state of this worker's session; also true while this worker
  // has no session with the callee.
  bool lease_counts() const;
  // The incarnation of the callee at the last connection; empty before the first connection, and
  // once the callee is gone.
  std::string incarnation() const;
  bool is_callee_gone() const;
  std::size_t num_calls() const;
  // The largest message in bytes. Takes the callee's limit into account once that is known.
  std::size_t max_message() const;
  // Adds the calls that have been under way for a long time, if a gauge or a timeline is on.
  void collect_open(std::vector<OpenCall>& open) const;

  // Called about ten times a second for deadlines, renewals and new connections.
  void look();
  // Says goodbye to the callee and ends all calls under way.
  void close();

  int descriptor() const override { return descriptor_; }
  void ready() override;
  void send() override;
  void take(const Frame& frame, Payload payload) override;

 private:
  using Lock = std::unique_lock<std::mutex>;
  using ConnectionPointer = std::shared_ptr<Connection>;
  // The pause between two attempts to connect.
  static constexpr std::chrono::milliseconds kShortestPause{10}, kLongestPause{1000};
  static constexpr std::chrono::milliseconds kNap{100};  // the longest sleep of a waiting thread
  static constexpr std::size_t kMaxAcknowledgements = 64;

  void wait_for_credit(Lock& lock, const PendingPointer& call);
  bool has_credit(std::size_t size) const;
  void begin_locked(const PendingPointer& call);
  void refuse_locked(PendingCall& call);
  std::size_t begin_queued_calls_locked();
  void wait_until(const PendingPointer& call, std::uint32_t states, Deadline deadline);
  void check_size(const CallTarget& target, const Outgoing& request) const;

  bool try_read(Deadline deadline);
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
  // The last call that has begun, and the number of one-way messages so far.
  struct Begun {
    CallNumber last_call = 0;
    std::uint64_t num_told = 0;
  };
  Begun begun() const;
  void end_all(const std::string& why, ErrorCode code, const Begun& begun);
  void end_too_large_locked();

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
  void queue_waiting_messages_locked();

  const SetupPointer setup_;
  const std::shared_ptr<Pool> pool_;
  const std::string name_;
  const SessionLost session_lost_;

  struct Reply {
    Frame frame;
    Payload payload;
    PendingPointer call{};
  };
  std::mutex receiving_;  // guards replies_; the thread that reads the socket holds it
  // The replies that the reading thread has received and delivers together.
  std::vector<Reply> replies_;
  std::atomic<bool> has_missed_{false};  // an event arrived while another thread was reading

  mutable std::mutex mutex_;  // guards all members below
  CallerSession session_;
  CallerSession::Steps steps_;  // reused, to save allocations
  CallerLease lease_;
  LeaseTime opening_sent_{};
  bool had_session_ = false;
  std::map<CallNumber, PendingPointer> calls_;
  std::deque<PendingPointer> without_credit_;  // calls that wait for credit
  std::size_t bytes_under_way_ = 0, max_calls_, max_bytes_, max_message_;
  std::uint64_t num_told_ = 0, bytes_told_ = 0, num_handled_ = 0, bytes_handled_ = 0;
  std::size_t batched_bytes_ = 0;  // queued bytes that wait to be sent with later requests
  std::vector<CallNumber> to_acknowledge_;
  // One-way messages, sent once there is a session.
  std::deque<std::pair<Frame, OutgoingPointer>> to_tell_;
  std::vector<PendingPointer> waiting_;  // calls whose threads sleep while another thread reads
  ConnectionPointer connection_;
  std::string incarnation_;
  std::atomic<int> descriptor_{-1};
  bool is_watched_ = false, is_sending_ = false;  // whether the pool watches for input, for room
  bool was_waited_for_ = false;                   // a thread has waited since the last call()
  int num_reads_in_row_ = 0;  // consecutive reads by waiting threads, while watched
  bool is_connecting_ = false, is_closed_ = false, is_callee_gone_ = false;
  std::optional<Deadline> connect_at_;
  std::chrono::milliseconds pause_;  // before the next attempt to connect
  std::string why_ = "no connection has been made yet";
  ErrorCode why_code_ = ErrorCode::kTimeout;
};

}  // namespace paceline::rpc
