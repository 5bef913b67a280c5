#pragma once

// A session: the calls of one worker (the caller) to another (the callee), over one connection
// after another. It decides what each end may report about a call. Both sides are state machines
// without sockets, threads and clocks, so that a test can run them through every order of events
// (tests/engine/rpc/session_search_test.cpp). The owners of the connections carry out the steps.
//
// The rules, each an invariant of that test:
//
//  1. A call that is not repeatable is executed at most once, whatever is lost or delayed, even
//     when the callee dies and another process takes its name.
//  2. A call that ends with a reply was executed, and the reply is its own.
//  3. A call that ends as "not executed" was not executed, and never will be.
//  4. A kOnce call ends with a reply unless a worker dies, the session ends or the caller gives up.
//  5. The callee keeps a record only of calls whose end the caller may not know yet.
//
// Why they hold. Requests have numbers that the caller never reuses. A connection delivers frames
// in order and begins with kOpen or kResume. After a lost connection the caller resumes the
// session: it lists the calls that it has sent and that have not ended. From this moment on the
// callee ignores frames from older connections (they are *fenced*: connections are numbered, and
// the callee remembers the largest number). It forgets every call that is not on the list, and
// reports for each call on the list whether it has arrived. A call that has not arrived by then
// never will, so the caller may send it again or end it as not executed. If the callee does not
// know the session of a message (the session has expired, or belongs to another process), it
// refuses the message; it also refuses a session that it lets expire. The caller then cannot
// learn the fate of the calls that it has sent, and sends only repeatable ones again.
//
// Numbered calls whose results the callee keeps until they are acknowledged are the idea of RIFL
// (Lee et al., "Implementing Linearizability at Large Scale and Low Latency", SOSP 2015).

#include <chrono>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "paceline/engine/rpc/call_target.h"

namespace paceline::rpc {

// How a call ended.
enum class CallEnd : std::uint8_t {
  kReplied,
  kNotExecuted,  // it was not executed and never will be
  kUnknown,      // it may have been executed, or may still be executed
};

using detail::Scope;

using CallNumber = std::uint64_t;
using SessionNumber = std::uint64_t;

// The state of a call at the callee when the caller resumes the session.
enum class CallState : std::uint8_t {
  kNotReceived,
  kRunning,
  kFinished,  // the reply of a kOnce call follows; other replies are lost
};
struct KnownCall {
  CallNumber number = 0;
  CallState state{};
  auto operator<=>(const KnownCall&) const = default;
};

// The caller's side.
class CallerSession {
 public:
  // A frame to send, or a call that has ended. The steps must be carried out in order.
  struct Step {
    enum class Kind : std::uint8_t {
      kOpen,         // ask for a session; the first message of a connection
      kResume,       // resume the session; the first message of a connection
      kRequest,      // send call `number`
      kAcknowledge,  // the callee may forget call `number`
      kEnded,        // call `number` ended without a reply, as `end`
    } kind{};
    CallNumber number = 0;
    CallEnd end{};
    bool operator==(const Step&) const = default;
  };
  using Steps = std::vector<Step>;

  // Begins a call, which is sent now or once there is a session.
  CallNumber begin(Effect effect, Scope scope, Steps& steps);
  // The caller no longer waits for the call: its deadline has passed, or it was cancelled. Has no
  // effect if the call has ended.
  void give_up(CallNumber number, Steps& steps);
  // Ends the calls up to number `last`, because the callee to which they were made will not return.
  void give_up_all(CallNumber last, Steps& steps);

  // A connection has been made. Its number is connection().
  void connected(Steps& steps);
  void disconnected();
  // The callee's answers, over the current connection.
  void opened(SessionNumber session, Steps& steps);
  void resumed(const std::vector<KnownCall>& known, Steps& steps);
  // The callee does not know `session`. Has no effect if that is an older session.
  void refused(SessionNumber session, Steps& steps);
  // A reply has arrived; returns false if the call has already ended.
  bool replied(CallNumber number, Steps& steps);

  SessionNumber session() const { return session_; }  // 0: none
  std::uint64_t connection() const { return connection_; }
  CallNumber last_call() const { return last_call_; }  // the call that began last; 0: none
  // The calls that were sent and have not ended, which kResume lists.
  std::vector<CallNumber> sent() const;
  std::size_t num_calls() const { return calls_.size(); }

  auto operator<=>(const CallerSession&) const = default;

 private:
  struct Call {
    Effect effect{};
    Scope scope{};
    bool is_sent = false;       // in this session
    bool may_have_run = false;  // whether an end without a reply is kUnknown
    auto operator<=>(const Call&) const = default;
  };
  void end(std::map<CallNumber, Call>::iterator call, CallEnd end, Steps& steps);
  void send_waiting(Steps& steps);

  std::map<CallNumber, Call> calls_;  // the calls that have not ended
  CallNumber last_call_ = 0;
  SessionNumber session_ = 0;
  std::uint64_t connection_ = 0;
  bool is_ready_ = false;  // the session was opened or resumed over this connection
};

// The callee's side of one session. It keeps a `Reply` for each kOnce call.
template <class Reply>
class CalleeSession {
 public:
  explicit CalleeSession(std::uint64_t connection) : connection_(connection) {}

  // Whether `connection` is the current one, so that its frames are accepted.
  bool is_current(std::uint64_t connection) const { return connection == connection_; }
  // Whether the session already knows this connection or a newer one.
  bool is_older(std::uint64_t connection) const { return connection <= connection_; }

  struct Resumption {
    std::vector<KnownCall> known;
    std::vector<std::pair<CallNumber, Reply>> replies;  // replies that must be sent again
  };
  // The caller resumes over `connection`, with a list of the calls that have not ended. Returns
  // nullopt if the session already belongs to a newer connection; `connection` is then fenced.
  std::optional<Resumption> resume(std::uint64_t connection, const std::vector<CallNumber>& sent) {
    if (is_older(connection)) return {};
    connection_ = connection;
    std::map<CallNumber, Record> kept;
    Resumption result;
    for (const CallNumber number : sent) {
      const auto found = records_.find(number);
      if (found == records_.end()) {
        result.known.push_back({number, CallState::kNotReceived});
        continue;
      }
      const Record& record = found->second;
      const bool is_running = !record.is_finished;
      result.known.push_back({number, is_running ? CallState::kRunning : CallState::kFinished});
      if (record.reply) result.replies.emplace_back(number, *record.reply);
      kept.insert(records_.extract(found));
    }
    for (auto& [number, record] : records_) {
      if (!record.is_finished) abandoned_.push_back(number);
    }
    records_ = std::move(kept);
    return result;
  }

  // Whether to execute request `number`, which arrived over the current connection.
  bool admit(CallNumber number, Effect effect) {
    const auto [place, is_new] = records_.try_emplace(number, Record{effect});
    if (is_new) return true;
    Record& record = place->second;
    if (effect != Effect::kRepeatable || !record.is_finished) return false;
    record.is_finished = false;
    return true;
  }
  // The handler of `number` has ended. Returns whether to send the reply, which is false if the
  // caller has given up the call.
  bool finish(CallNumber number, const Reply& reply) {
    const auto found = records_.find(number);
    if (found == records_.end()) return false;
    found->second.is_finished = true;
    if (found->second.effect == Effect::kOnce) found->second.reply = reply;
    return true;
  }
  void acknowledge(CallNumber number) {
    const auto found = records_.find(number);
    if (found == records_.end()) return;
    if (!found->second.is_finished) abandoned_.push_back(number);
    records_.erase(found);
  }

  // The calls that were given up while their handlers ran, since the last query. Their handlers can
  // be asked to stop.
  std::vector<CallNumber> take_abandoned() { return std::exchange(abandoned_, {}); }
  bool has_abandoned() const { return !abandoned_.empty(); }
  std::size_t num_records() const { return records_.size(); }

  auto operator<=>(const CalleeSession&) const = default;

 private:
  struct Record {
    Effect effect{};
    bool is_finished = false;
    std::optional<Reply> reply{};
    auto operator<=>(const Record&) const = default;
  };
  std::map<CallNumber, Record> records_;
  std::vector<CallNumber> abandoned_;
  std::uint64_t connection_;
};

// The lease of a session. The callee keeps a session, and with it the objects to which the caller
// has references, for one lease after the caller's last sign of life, by the callee's clock. The
// caller renews the lease three times in that time, with one message for all its references. By its
// own clock, the caller relies on the session for four fifths of a lease after it *sent* the last
// confirmed renewal. So it stops relying on the session before the callee ends the session, even if
// the caller's clock runs 10% slow and the callee's 10% fast: 0.8 / 0.9 < 1 / 1.1.
//
// Both clocks must continue while the machine sleeps (CLOCK_BOOTTIME).
//
// Thread safety: none.

using LeaseTime = std::chrono::nanoseconds;                           // on the worker's own clock
inline constexpr LeaseTime kDefaultLease = std::chrono::seconds(10);  // JoinOptions::lease

// The caller's side.
class CallerLease {
 public:
  explicit CallerLease(LeaseTime lease = kDefaultLease) : lease_(lease) {}

  // The session was opened or resumed by a message that was sent at `sent`.
  void begin(LeaseTime sent) {
    counts_until_ = sent + lease_ / 5 * 4;
    renewal_due_ = sent + lease_ / 3;
    unconfirmed_.reset();
  }
  // The connection or the session is lost. The lease continues until it expires.
  void interrupt() { renewal_due_.reset(); }

  // When the next renewal must be sent; nullopt while there is no connection, or while a renewal is
  // unconfirmed.
  std::optional<LeaseTime> renewal_due() const {
    return unconfirmed_ ? std::nullopt : renewal_due_;
  }
  void renewal_sent(LeaseTime now) { unconfirmed_ = now; }
  void renewal_confirmed() {
    if (unconfirmed_) begin(*unconfirmed_);
  }
  // Whether the callee still keeps the objects to which this worker refers.
  bool counts(LeaseTime now) const { return now < counts_until_; }

 private:
  LeaseTime lease_;
  LeaseTime counts_until_{0};
  std::optional<LeaseTime> renewal_due_, unconfirmed_;
};

// The callee's side.
class CalleeLease {
 public:
  CalleeLease(LeaseTime now, LeaseTime lease = kDefaultLease)
      : lease_(lease), expires_(now + lease) {}

  // A frame from the caller arrived over the current connection.
  void heard(LeaseTime now) { expires_ = now + lease_; }
  // Once the lease has expired, the session and everything that depends on it no longer exist.
  bool has_expired(LeaseTime now) const { return now >= expires_; }

 private:
  LeaseTime lease_, expires_;
};

// The identity of the object that a reference refers to.
struct ObjectId {
  std::string owner;        // a worker's name
  std::string incarnation;  // the incarnation of that worker
  ObjectNumber number = 0;
  static auto fields(auto& self) { return std::tie(self.owner, self.incarnation, self.number); }
  auto operator<=>(const ObjectId&) const = default;
};

}  // namespace paceline::rpc
