#pragma once

// Which clock the timelines of several hosts are put on, and by how much each moves. It is that of
// the host where the job's first rank 0 ran. The ranks of one generation have usually measured
// their clocks against rank 0's host already, along a shorter way than the launcher's; that counts
// unless the launcher's newest comparison contradicts it, as after hours in which the clocks have
// drifted. Pure.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
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

// The timelines of all ranks as one file that Perfetto (https://ui.perfetto.dev) and
// chrome://tracing open: Chrome's trace format in JSON. A process is a rank; its tracks are steps,
// phases, background checkpoints, and for each group its collectives and its messages. What
// overlaps on a track moves to a second one, because the format nests spans. Its metadata
// ("otherData") say how far off the clocks of two hosts may be.
//
// The file has at most two million spans, about 300 MB: each rank's share of the newest.

struct TraceSummary {
  std::size_t num_files = 0;  // one of each rank and start
  std::size_t num_ranks = 0;
  std::size_t num_spans = 0;
  std::uint64_t num_omitted = 0;      // recorded, but older than those kept
  double clock_error = 0;             // seconds: how far off the clocks of two hosts may be
  std::vector<std::string> problems;  // files that were left out, and why
};

// Writes a new `output` from the timelines at `paths`. Error(kInvalid) when none of them can be
// used, Error(kSystem) when the file cannot be written; the old one stays then.
TraceSummary write_trace(const std::vector<std::string>& paths, const std::string& output);

// Why write_trace() could not write there, or "". Leaves nothing behind.
std::string obstacle_to_trace(const std::string& output);

// "12,345 spans of 2 ranks"; a rank that was started again is one.
std::string describe(const TraceSummary& summary);

}  // namespace paceline::launcher
