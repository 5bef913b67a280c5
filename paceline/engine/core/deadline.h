#pragma once

// A moment on the monotonic clock by which a wait must end. A value: copy it down the call chain,
// so that nested waits share one limit instead of adding up limits of their own. A step of the wall
// clock does not move it.

#include <algorithm>
#include <chrono>
#include <ctime>
#include <optional>

namespace paceline {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  // The moment `timeout` from now. A timeout of more than about 30 years gives never(), and a
  // negative timeout gives now. With timeouts of a second or more, the deadline may be up to 10 ms
  // later, because it is made from the kernel's coarse clock, which is cheaper to read.
  template <class Rep, class Period>
  static Deadline after(std::chrono::duration<Rep, Period> timeout) {
    const std::chrono::duration<double> seconds =
        timeout;  // a double does not overflow in any unit
    if (seconds > kLongest) return never();
    const bool is_coarse = seconds >= kCoarse;
    const auto now = is_coarse ? last_tick() : Clock::now();
    if (seconds < std::chrono::seconds(0)) return Deadline(now, now);
    return Deadline(now + (is_coarse ? kTick : std::chrono::nanoseconds(0)) +
                        std::chrono::duration_cast<std::chrono::nanoseconds>(timeout),
                    now);
  }
  static Deadline never() { return Deadline(Clock::time_point::max(), Clock::time_point::max()); }

  bool expired() const { return Clock::now() >= moment_; }
  Clock::time_point moment() const { return moment_; }
  // When the deadline was set, or up to 10 ms earlier; Clock::time_point::max() for never().
  Clock::time_point set_at() const { return set_at_; }
  // The timeout from which this deadline was made, in whole milliseconds; none for never().
  std::optional<std::chrono::milliseconds> timeout() const {
    if (moment_ == Clock::time_point::max()) return {};
    const auto given = moment_ - set_at_;
    return std::chrono::round<std::chrono::milliseconds>(given < kCoarse ? given : given - kTick);
  }

  // The time left, never negative.
  std::chrono::nanoseconds remaining() const {
    if (moment_ == Clock::time_point::max()) return kLongest;
    return std::max(std::chrono::nanoseconds(0),
                    std::chrono::duration_cast<std::chrono::nanoseconds>(moment_ - Clock::now()));
  }

  // The time left in whole milliseconds, rounded up and at most `limit`: the timeout argument of
  // poll().
  int poll_timeout_ms(std::chrono::milliseconds limit = std::chrono::hours(1)) const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(remaining());
    return static_cast<int>(std::min(left, limit).count());
  }

 private:
  static constexpr std::chrono::nanoseconds kLongest = std::chrono::hours(24 * 365 * 30);
  static constexpr std::chrono::nanoseconds kCoarse = std::chrono::seconds(1);
  static constexpr std::chrono::nanoseconds kTick =
      std::chrono::milliseconds(10);  // the longest tick of a kernel

  // When the kernel last advanced its coarse clock, at most a tick ago.
  static Clock::time_point last_tick() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    return Clock::time_point(std::chrono::seconds(time.tv_sec) +
                             std::chrono::nanoseconds(time.tv_nsec));
  }

  Deadline(Clock::time_point moment, Clock::time_point set_at) : moment_(moment), set_at_(set_at) {}
  Clock::time_point moment_;
  Clock::time_point set_at_;
};

}  // namespace paceline
