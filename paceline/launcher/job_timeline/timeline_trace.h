#pragma once

// The timelines of all ranks as one file that Perfetto (https://ui.perfetto.dev) and
// chrome://tracing open: Chrome's trace format in JSON. A process is a rank; its tracks are steps,
// phases, background checkpoints, and for each group its collectives and its messages. What
// overlaps on a track moves to a second one, because the format nests spans. Its metadata
// ("otherData") say how far off the clocks of two hosts may be.
//
// The file has at most two million spans, about 300 MB: each rank's share of the newest.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace paceline::launcher {

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
