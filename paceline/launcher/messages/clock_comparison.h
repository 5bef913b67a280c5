#pragma once

// Measures the offset between the monotonic clocks of this host and of another host, by asking the
// other host for the time. An exchange has four readings, as in NTP: asked (here), heard and
// answered (there), returned (here). The other host's readings lie between this host's readings.
// The estimate assumes that they lie in the middle, so its error is at most half the round trip,
// whichever direction was slower. Among the newest exchanges, the exchange with the shortest round
// trip is used (Cristian, "Probabilistic clock synchronization", 1989).
//
// Wall clocks are not used, so a host with a wrong date does no harm. Clocks that are not
// disciplined drift apart by several microseconds per second; drift() is a lower bound of the
// drift, computed from the exchanges.
//
// Thread safety: none. Does no I/O.

#include <chrono>
#include <cstddef>
#include <deque>

#include "paceline/engine/core/deadline.h"

namespace paceline::launcher {

// Readings of the hosts' own monotonic clocks. A request carries only `asked`.
struct ClockExchange {
  std::chrono::nanoseconds asked{}, heard{}, answered{}, returned{};
  bool operator==(const ClockExchange&) const = default;
};

// A reading of this host's monotonic clock.
std::chrono::nanoseconds clock_reading(Deadline::Clock::time_point moment = Deadline::Clock::now());

// Whether the reading is plausible: from 0 to about 36 years. Sums of plausible readings do not
// overflow.
bool is_plausible_reading(std::chrono::nanoseconds reading);

class ClockComparison {
 public:
  // Adds an exchange. Ignores it if its readings are inconsistent.
  void take(const ClockExchange& exchange);

  bool measured() const { return !newest_.empty(); }
  // The functions below require measured().

  // This clock minus the other one.
  std::chrono::nanoseconds offset() const { return best().offset; }
  // The largest possible error of offset() at the time of its measurement.
  std::chrono::nanoseconds error() const { return best().error; }
  // A lower bound on how far the clocks have drifted apart since the first exchange.
  std::chrono::nanoseconds drift() const;
  // The longest round trip among the newest exchanges.
  std::chrono::nanoseconds longest_round_trip() const;

 private:
  static constexpr std::size_t kNewest = 16;
  struct Estimate {
    std::chrono::nanoseconds offset, error;
  };

  const Estimate& best() const;

  std::deque<Estimate> newest_;
  // The lowest upper bound and the highest lower bound of the offset so far, each from one
  // exchange. If the second is above the first, the offset has changed by at least the difference,
  // which drift() returns.
  std::chrono::nanoseconds lowest_top_ = std::chrono::nanoseconds::max();
  std::chrono::nanoseconds highest_bottom_ = std::chrono::nanoseconds::min();
};

}  // namespace paceline::launcher
