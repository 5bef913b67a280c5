#pragma once

// Which clock the timelines of several hosts are put on, and by how much each moves. It is that of
// the host where the job's first rank 0 ran. The ranks of one generation have usually measured
// their clocks against rank 0's host already, along a shorter way than the launcher's; that counts
// unless the launcher's newest comparison contradicts it, as after hours in which the clocks have
// drifted. Pure.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace paceline::launcher {

struct ClockShift {
  std::chrono::nanoseconds offset{};
  std::chrono::nanoseconds error{};  // of the offset, at most
  bool operator==(const ClockShift&) const = default;
};

// One rank's timeline of one generation.
struct TimelineOrigin {
  std::size_t host = 0;
  int rank = 0;
  std::uint32_t generation = 0;
  // What the ranks measured, towards rank 0's host: an error of 0 on another host is no
  // measurement.
  ClockShift own;
};

// By how much each timeline moves, beyond what its own measurement moves it. `hosts`: from each
// host's clock to the launcher's.
std::vector<ClockShift> shifts_to_one_clock(const std::vector<TimelineOrigin>& timelines,
                                            const std::vector<ClockShift>& hosts);

}  // namespace paceline::launcher
