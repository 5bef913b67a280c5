#pragma once

// Puts the timelines of ranks on one clock and writes them as one trace that a browser shows.

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
  // The shift to the clock of rank 0's host, as the ranks measured it. An error of 0 on another
  // host is no measurement.
  ClockShift own;
};

// By how much each timeline of several hosts must be moved, in addition to its own measurement, to
// get onto the clock of the host where the job's first rank 0 ran. `hosts`: from each host's clock
// to the launcher's. Pure.
//
// The ranks of one generation have usually measured their clocks against rank 0's host already,
// along a shorter way than the launcher's. That counts unless the launcher's newest comparison
// contradicts it, as after hours in which the clocks have drifted.
std::vector<ClockShift> shifts_to_one_clock(const std::vector<TimelineOrigin>& timelines,
                                            const std::vector<ClockShift>& hosts);

struct TraceSummary {
  std::size_t num_files = 0;  // one for each start of each rank
  std::size_t num_ranks = 0;
  std::size_t num_spans = 0;
  std::uint64_t num_omitted = 0;      // recorded, but older than those kept
  double clock_error = 0;             // seconds: how far off the clocks of two hosts may be
  std::vector<std::string> problems;  // files that were left out, and why
};

// Writes the timelines at `paths` as one file that Perfetto (https://ui.perfetto.dev) and
// chrome://tracing open: Chrome's trace format in JSON. A process is a rank; its tracks are steps,
// phases, background checkpoints, and for each group its collectives and its messages. A span that
// overlaps another one moves to a second track, because the format nests spans. The metadata
// ("otherData") tell how far off the clocks of two hosts may be.
//
// The file has at most two million spans, about 300 MB: each rank's newest ones. Error(kInvalid)
// when no timeline can be used, Error(kSystem) when the file cannot be written; the old one stays
// then.
TraceSummary write_trace(const std::vector<std::string>& paths, const std::string& output);

// Why write_trace() could not write there, or "". Leaves nothing behind.
std::string obstacle_to_trace(const std::string& output);

// "12,345 spans of 2 ranks"; a rank that was started again is one.
std::string describe(const TraceSummary& summary);

}  // namespace paceline::launcher
