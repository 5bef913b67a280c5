#pragma once

// How far the monotonic clock of this rank's host is from that of rank 0's, for putting what
// several hosts did on one clock. Wall clocks play no part: a host whose date is wrong is as good
// as any other.
//
// One rank of each host sends rank 0 small messages that come back with rank 0's time. Of the
// fastest round trip, rank 0 answered somewhere between sending and receiving; taking the middle is
// wrong by half the round trip at most (Cristian, "Probabilistic clock synchronization", 1989).
// Clocks drift apart afterwards, by some microseconds a second when nothing disciplines them.

#include <chrono>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

struct ClockOffset {
  std::chrono::nanoseconds offset{};  // rank 0's clock minus this one's
  std::chrono::nanoseconds error{};   // at most, one way or the other
};

// Collective. Zero for the ranks of rank 0's host. Errors: those of messages.
ClockOffset measure_clock_offset(ProcessGroup& group);

}  // namespace paceline
