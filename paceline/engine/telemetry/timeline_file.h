#pragma once

// Timeline files, read. They are taken for what a stranger may have written.
//
// Thread safety: pure functions of what they read.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "paceline/engine/telemetry/timeline.h"

namespace paceline {

struct TimelineSpan {
  SpanKind kind = SpanKind::kPhase;
  std::uint8_t what = 0;
  std::uint8_t dtype = 0;
  bool failed = false;
  std::uint32_t sequence = 0;
  std::uint32_t group = 0;
  std::int32_t peer = 0;
  std::uint32_t thread = 0;
  std::int64_t value = 0;
  std::int64_t begin = 0, end = 0;  // ns on the clock of rank 0's host
};

// One rank's file of one generation.
struct RankTimeline {
  int rank = 0;
  int world_size = 1;
  std::uint32_t generation = 0;
  int pid = 0;
  std::string host;
  std::int64_t clock_offset = 0;    // ns: was added to the times of this host's clock
  std::int64_t clock_error = 0;     // ns
  std::uint64_t num_recorded = 0;   // the ring keeps the newest of them
  std::vector<std::string> groups;  // names, by number
  std::vector<std::string> names;   // of methods and workers, by number
  std::vector<TimelineSpan> spans;  // by begin
};

// Error(kSystem), Error(kCorrupt) for anything that Timeline does not write.
RankTimeline read_timeline(const std::string& path);

// A timeline's bytes without the room that no span has taken, to be sent to another host.
// Error(kSystem), Error(kCorrupt) for a file larger than any timeline.
std::string pack_timeline(const std::string& path);
// Makes the file at `path` that was packed; what it holds is looked at by read_timeline. Errors as
// above.
void unpack_timeline(const std::string& packed, const std::string& path);
// Moves the times in the file by `offset`, which may be off by `error`. Errors as above.
void shift_timeline(const std::string& path, std::chrono::nanoseconds offset,
                    std::chrono::nanoseconds error);

// Of one rank and generation: "rank-000-000.timeline".
std::string timeline_file_name(int rank, int generation);
// The paths of all timelines in a directory, sorted. Error(kSystem) when it cannot be read.
std::vector<std::string> timelines_in(const std::string& directory);

}  // namespace paceline
