#pragma once

// A moment on the monotonic clock by which a wait must end. A value: copy it down the call chain,
// so that nested waits share one limit instead of adding theirs up. A step of the wall clock does
// not move it.

#include <algorithm>
#include <chrono>

namespace paceline {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  // `timeout` from now. Anything beyond about 30 years is never().
  static Deadline after(std::chrono::nanoseconds timeout) {
    const auto now = Clock::now();
    return timeout > kLongest ? never() : Deadline(now + timeout);
  }
  static Deadline never() { return Deadline(Clock::time_point::max()); }

  bool expired() const { return Clock::now() >= moment_; }
  Clock::time_point moment() const { return moment_; }

  // What is left, never negative.
  std::chrono::nanoseconds remaining() const {
    if (moment_ == Clock::time_point::max()) return kLongest;
    return std::max(std::chrono::nanoseconds(0),
                    std::chrono::duration_cast<std::chrono::nanoseconds>(moment_ - Clock::now()));
  }

  // What is left, in whole milliseconds rounded up and at most `limit`: the timeout argument of
  // poll().
  int poll_timeout_ms(std::chrono::milliseconds limit = std::chrono::hours(1)) const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(remaining());
    return static_cast<int>(std::min(left, limit).count());
  }

 private:
  static constexpr std::chrono::nanoseconds kLongest = std::chrono::hours(24 * 365 * 30);
  explicit Deadline(Clock::time_point moment) : moment_(moment) {}
  Clock::time_point moment_;
};

}  // namespace paceline
