#pragma once

// Converts the timelines of ranks to one clock and writes them as one trace that a browser can
// show.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace paceline::launcher {

struct ClockShift {
  std::chrono::nanoseconds offset{};
  std::chrono::nanoseconds error{};  // the largest possible error of the offset
  bool operator==(const ClockShift&) const = default;
};

// One rank's timeline of one generation.
struct TimelineOrigin {
  std::size_t host = 0;
  int rank = 0;
  std::uint32_t generation = 0;
  // The shift to the clock of rank 0's host, as the ranks measured it; the timeline already
  // contains it. On a host other than rank 0's, an error of 0 means that nothing was measured.
  ClockShift own;
};

// The shift of each timeline, in addition to its `own` shift, to the clock of the host where the
// job's first rank 0 ran. `hosts`: the shift from each host's clock to the launcher's clock.
//
// The ranks of one generation have usually measured their clocks against the clock of rank 0's host
// already, over a shorter path than the launcher's. That measurement is used unless the launcher's
// newest comparison contradicts it, for instance because the clocks have drifted for hours.
std::vector<ClockShift> shifts_to_one_clock(const std::vector<TimelineOrigin>& timelines,
                                            const std::vector<ClockShift>& hosts);

struct TraceSummary {
  std::size_t num_files = 0;  // one for each start of each rank
  std::size_t num_ranks = 0;
  std::size_t num_spans = 0;
  std::uint64_t num_omitted = 0;      // spans that were recorded, but are too old for the trace
  double clock_error = 0;             // the largest possible error of a timeline's clock, in s
  std::vector<std::string> problems;  // files that were left out, and why
};

// Writes the timelines at `paths` as one file that Perfetto (https://ui.perfetto.dev) and
// chrome://tracing can open: Chrome's trace format in JSON. Each rank is a process of the trace;
// its tracks are steps, phases, background checkpoints, calls and handlers, and the collectives and
// messages of each group. A span that overlaps another one moves to a further track, because the
// format nests spans. The metadata ("otherData") contain the largest possible error of a timeline's
// clock.
//
// The file has at most two million spans, about 300 MB: each rank's newest ones. Error(kInvalid) if
// no timeline can be used, Error(kSystem) if the file cannot be written; an older file then stays.
TraceSummary write_trace(const std::vector<std::string>& paths, const std::string& output);

// Why write_trace() could not write to `output`, or "". Leaves no file.
std::string obstacle_to_trace(const std::string& output);

// "12,345 spans of 2 ranks"; a rank that was started again counts once.
std::string describe(const TraceSummary& summary);

}  // namespace paceline::launcher
