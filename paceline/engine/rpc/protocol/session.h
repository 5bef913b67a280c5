#pragma once

// A session: the calls of one worker (the caller) at another (the callee), over one connection
// after another. It decides what each end of a call may claim. Both halves are state machines
// without sockets, threads and clocks, so that a test can take them through every order of events
// (tests/engine/rpc/session_search_test.cpp). Whoever owns the connections carries out what they
// say.
//
// The rules, each an invariant of that test:
//
//  1. A call that is not repeatable is executed at most once, whatever is lost or delayed, and also
//     when the callee dies and another process takes its name.
//  2. A call that ends by a reply was executed, and the reply is its own.
//  3. A call that ends as "not executed" was not executed, and never will be.
//  4. A call of kOnce ends by a reply if caller and callee live and keep the session.
//  5. The callee keeps a record only of calls whose end the caller may not know yet.
//
// How they hold. Requests have numbers that the caller never uses twice. A connection keeps the
// order of what is sent and begins with kOpen or kResume. After a lost connection the caller
// resumes: it lists the calls that it has sent and that have not ended. From this moment on the
// callee ignores what older connections still bring (it is *fenced*: the number of the connection
// is larger, and the callee keeps the largest), forgets every call that is not on the list, and
// tells for each one on it whether it has arrived. What has not arrived by then never will, so the
// caller may send it again or give it up as not executed. A callee that does not know the session
// of a message (it has expired, or is one of another process) refuses it, and it refuses a session
// when it lets that expire; then nothing can be learned of calls that were sent, and only
// repeatable ones are sent again.
//
// The idea of numbered calls whose results the callee keeps until they are acknowledged is that of
// RIFL (Lee et al., "Implementing Linearizability at Large Scale and Low Latency", SOSP 2015).

#include <chrono>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace paceline::rpc {

// What executing a method twice would do. The method declares it.
enum class Effect : std::uint8_t {
  kAtMostOnce,  // never executed twice; a lost reply leaves the outcome unknown
  kRepeatable,  // may be executed again, as a read may: retried until the deadline
  kOnce,        // executed once: the callee keeps the reply until the caller has it
};

// How a call ended.
enum class CallEnd : std::uint8_t {
  kReplied,
  kNotExecuted,  // it was not executed and will not be
  kUnknown,      // it may have been executed, or may still be
};

// Whether a call that was not sent may go to the callee's next session when this one is lost. One
// about what the session keeps, such as a reference, may not: it ends as not executed.
enum class Scope : std::uint8_t { kAnySession, kThisSession };

using CallNumber = std::uint64_t;
using SessionNumber = std::uint64_t;

// What a callee knows of a call when the caller resumes the session.
enum class CallState : std::uint8_t {
  kNotReceived,
  kRunning,
  kFinished,  // the reply of a call of kOnce follows; others' was lost
};
struct KnownCall {
  CallNumber number = 0;
  CallState state{};
  auto operator<=>(const KnownCall&) const = default;
};

// The caller's half.
class CallerSession {
 public:
  // What has to be sent, in this order, or has ended.
  struct Step {
    enum class Kind : std::uint8_t {
      kOpen,         // ask for a session; the first message of a connection
      kResume,       // go on with the session; the first message of a connection
      kRequest,      // send call `number`
      kAcknowledge,  // the callee may forget call `number`
      kEnded,        // without a reply, as `end`
    } kind{};
    CallNumber number = 0;
    CallEnd end{};
    bool operator==(const Step&) const = default;
  };
  using Steps = std::vector<Step>;

  // A new call. It is sent now or once there is a session.
  CallNumber begin(Effect effect, Scope scope, Steps& steps);
  // The caller does not wait any longer: its deadline has passed, or it was cancelled. Nothing
  // happens if the call has ended.
  void give_up(CallNumber number, Steps& steps);
  // Ends all calls, because the callee is gone for good.
  void give_up_all(Steps& steps);

  // A connection stands. It has the number connection().
  void connected(Steps& steps);
  void disconnected();
  // The callee's answers, over the connection that stands.
  void opened(SessionNumber session, Steps& steps);
  void resumed(const std::vector<KnownCall>& known, Steps& steps);
  // The callee does not know `session`. Nothing if that is an older one.
  void refused(SessionNumber session, Steps& steps);
  // False for a reply to a call that has ended.
  bool replied(CallNumber number, Steps& steps);

  SessionNumber session() const { return session_; }  // 0: none
  std::uint64_t connection() const { return connection_; }
  // The calls that were sent and have not ended: the list of kResume.
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

  std::map<CallNumber, Call> calls_;  // that have not ended
  CallNumber last_call_ = 0;
  SessionNumber session_ = 0;
  std::uint64_t connection_ = 0;
  bool is_ready_ = false;  // the session was opened or resumed over the connection that stands
};

// The callee's half of one session. `Reply` is what it keeps of calls of kOnce.
template <class Reply>
class CalleeSession {
 public:
  explicit CalleeSession(std::uint64_t connection) : connection_(connection) {}

  // Whether what came over `connection` counts.
  bool is_current(std::uint64_t connection) const { return connection == connection_; }
  // Whether a newer connection, or this one, has been here.
  bool is_older(std::uint64_t connection) const { return connection <= connection_; }

  struct Resumption {
    std::vector<KnownCall> known;
    std::vector<std::pair<CallNumber, Reply>> replies;  // to be sent again
  };
  // The caller resumes over `connection`, with the calls that have not ended. Nothing if a newer
  // connection was here first: this one must be closed.
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

  // Whether request `number`, which came over the current connection, is to be executed.
  bool admit(CallNumber number, Effect effect) {
    const auto [place, is_new] = records_.try_emplace(number, Record{effect});
    if (is_new) return true;
    Record& record = place->second;
    if (effect != Effect::kRepeatable || !record.is_finished) return false;
    record.is_finished = false;
    return true;
  }
  // The handler of `number` has ended. True if the reply is to be sent: the caller has not given
  // the call up.
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

  // The calls that were given up while their handlers ran, since the last question: they may be
  // told to stop.
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

// How long a session lives that hears nothing. The callee keeps a session, and with it the objects
// to which the caller has references, for one lease after the last sign of life, by its own clock.
// The caller renews the lease three times as often, with one message however many references it
// has, and counts on it for four fifths of the time, by its own clock, from the moment at which it
// *sent* the last renewal that was confirmed. So it stops before the callee does, also when its
// clock runs 10% slower and the callee's 10% faster: 0.8 / 0.9 < 1 / 1.1.
//
// Both clocks must go on while the machine sleeps (CLOCK_BOOTTIME).
//
// Thread safety: none.

using LeaseTime = std::chrono::nanoseconds;  // of the worker's own clock
inline constexpr LeaseTime kDefaultLease = std::chrono::seconds(10);

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
  // The connection or the session is lost. The lease goes on until it runs out.
  void interrupt() { renewal_due_.reset(); }

  // When the next renewal must be sent; nothing while there is no connection, or while one is
  // unconfirmed.
  std::optional<LeaseTime> renewal_due() const {
    return unconfirmed_ ? std::nullopt : renewal_due_;
  }
  void renewal_sent(LeaseTime now) { unconfirmed_ = now; }
  void renewal_confirmed() {
    if (unconfirmed_) begin(*unconfirmed_);
  }
  // Whether the callee still has what this worker refers to.
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

  // Something came from the caller over the current connection.
  void heard(LeaseTime now) { expires_ = now + lease_; }
  // From this moment on the session and everything that depends on it is gone.
  bool has_expired(LeaseTime now) const { return now >= expires_; }

 private:
  LeaseTime lease_, expires_;
};

// Which object a reference refers to.

// Of the objects of one owner: chosen at random by the worker that creates it, never used twice.
using ObjectNumber = std::uint64_t;

struct ObjectId {
  std::string owner;        // a worker's name
  std::string incarnation;  // of that worker: the epoch
  ObjectNumber number = 0;
  static auto fields(auto& self) { return std::tie(self.owner, self.incarnation, self.number); }
  auto operator<=>(const ObjectId&) const = default;
};

}  // namespace paceline::rpc
