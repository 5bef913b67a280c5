#pragma once

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

#include <chrono>
#include <optional>

namespace paceline::rpc {

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
  LeaseTime expires() const { return expires_; }

 private:
  LeaseTime lease_, expires_;
};

}  // namespace paceline::rpc
