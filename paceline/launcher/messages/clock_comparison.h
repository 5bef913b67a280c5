#pragma once

// How far the monotonic clock of another host is from this one's, found by asking it for the time.
// An exchange has four readings, as in NTP: asked (here), heard and answered (there), returned
// (here). The other host heard and answered somewhere between the outer two, so the middle is wrong
// by half the round trip at most, whichever way was the slower one; of the newest exchanges the one
// with the shortest round trip counts (Cristian, "Probabilistic clock synchronization", 1989).
//
// Wall clocks play no part: a host whose date is wrong is as good as any other. Clocks that nothing
// disciplines drift apart, by some microseconds a second; drift() is the part of it that the
// exchanges prove.
//
// Thread safety: none. Pure.

#include <chrono>
#include <cstddef>
#include <deque>

#include "paceline/engine/core/deadline.h"

namespace paceline::launcher {

// Readings of the hosts' own monotonic clocks. A question has only the first.
struct ClockExchange {
  std::chrono::nanoseconds asked{}, heard{}, answered{}, returned{};
  bool operator==(const ClockExchange&) const = default;
};

// This host's monotonic clock.
std::chrono::nanoseconds clock_reading(Deadline::Clock::time_point moment = Deadline::Clock::now());

// Whether a monotonic clock can show this: it has run for less than 36 years. So sums of readings
// do not overflow.
bool is_reading(std::chrono::nanoseconds reading);

class ClockComparison {
 public:
  // Drops an exchange that no two clocks can have made.
  void take(const ClockExchange& exchange);

  bool measured() const { return !newest_.empty(); }
  // These require measured(). The difference between this clock and the other one, ...
  std::chrono::nanoseconds offset() const { return best().offset; }
  // ... how far off that was at most when it was measured, ...
  std::chrono::nanoseconds error() const { return best().error; }
  // ... and how far the clocks have moved against each other since the first exchange, at least.
  std::chrono::nanoseconds drift() const;
  // The round trip of the longest of the newest exchanges.
  std::chrono::nanoseconds longest_round_trip() const;

 private:
  static constexpr std::size_t kNewest = 16;
  struct Estimate {
    std::chrono::nanoseconds offset, error;
  };

  const Estimate& best() const;

  std::deque<Estimate> newest_;
  // At some moment the offset was at most the first, at another one at least the second.
  std::chrono::nanoseconds lowest_top_ = std::chrono::nanoseconds::max();
  std::chrono::nanoseconds highest_bottom_ = std::chrono::nanoseconds::min();
};

}  // namespace paceline::launcher
