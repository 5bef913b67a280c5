#pragma once

// The layout of a timeline file, shared by its writer (timeline.h) and its reader (below): a
// header, a table of groups, a table of names, a ring of spans. Integers are little-endian. A span
// is complete when its stamp is its number.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "paceline/engine/telemetry/timeline.h"

namespace paceline::timeline {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a big-endian port must swap here");

inline constexpr std::array<char, 8> kMagic = {'P', 'L', 'T', 'I', 'M', 'E', 'L', 'N'};
inline constexpr std::uint32_t kVersion = 2;
inline constexpr std::size_t kNumSpans = std::size_t{1} << 16;
inline constexpr std::size_t kNumGroups = 64;
inline constexpr std::size_t kNumNames = 256;
inline constexpr std::size_t kNameBytes = 64;

struct Header {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t num_spans;
  std::int32_t rank;
  std::int32_t world_size;
  std::uint32_t generation;
  std::int32_t pid;
  std::array<char, 64> host;
  // Nanoseconds to add to this host's monotonic clock to get the time on the clock of rank 0's
  // host, and the possible error of this offset.
  std::int64_t clock_offset;
  std::int64_t clock_error;
  alignas(64) std::uint64_t next;  // spans recorded so far: the number of the newest one
};

// A name that is all zero is unused.
using Name = std::array<char, kNameBytes>;

// Spans are numbered from 1 on, and stored at number % kNumSpans.
struct Span {
  std::uint64_t stamp;  // the number; 0 while the span is being written
  std::uint64_t begin;  // ns, monotonic
  std::uint64_t end;
  std::int64_t value;  // operation: number of elements; step, call: its number
  std::uint32_t
      sequence;         // collective: its number, 0 for none; call: its method, an index of names
  std::uint32_t group;  // operation: the flight recorder's number of the group; call: the
                        // worker at the other end, an index of names
  std::int32_t peer;    // operation: the root, or the other rank of a message
  std::uint8_t kind;    // SpanKind
  std::uint8_t what;    // Phase, or the number of an operation
  std::uint8_t dtype;
  std::uint8_t failed;
  std::uint32_t thread;  // the kernel's thread id
  std::uint32_t reserved[3];
};
static_assert(sizeof(Span) == 64);

struct File {
  alignas(4096) Header header;
  alignas(4096) std::array<Name, kNumGroups> groups;
  alignas(
      4096) std::array<Name, kNumNames> names;  // entry 0 is for names that do not fit in the table
  alignas(4096) std::array<Span, kNumSpans> spans;
};
static_assert(sizeof(File) == 8192 + 64 * (kNumNames + kNumSpans));

}  // namespace paceline::timeline

// The reader of timeline files, which treats them as untrusted.
//
// Thread safety: pure functions of the files that they read.

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
  std::int64_t clock_offset = 0;    // ns, already added to all times
  std::int64_t clock_error = 0;     // ns
  std::uint64_t num_recorded = 0;   // the ring keeps only the newest spans
  std::vector<std::string> groups;  // names, indexed by number
  std::vector<std::string> names;   // of methods and workers, indexed by number
  std::vector<TimelineSpan> spans;  // ordered by begin
};

// Throws Error(kSystem), and Error(kCorrupt) for contents that Timeline never writes.
RankTimeline read_timeline(const std::string& path);

// The bytes of a timeline without the zeros at its end, to be sent to another host. Throws
// Error(kSystem), and Error(kCorrupt) for a file that is larger than any timeline.
std::string pack_timeline(const std::string& path);
// Restores a packed timeline to the file `path`. read_timeline() checks the contents later. Throws
// Error(kSystem), and Error(kCorrupt) for more bytes than any timeline has.
void unpack_timeline(const std::string& packed, const std::string& path);
// Shifts the times in the file by `offset`, which may be off by `error`. Throws Error(kSystem), and
// Error(kCorrupt) for a file without a whole header or an implausibly large offset or error.
void shift_timeline(const std::string& path, std::chrono::nanoseconds offset,
                    std::chrono::nanoseconds error);

// The file of one rank and generation: "rank-000-000.timeline".
std::string timeline_file_name(int rank, int generation);
// The paths of all timelines in a directory, sorted. Throws Error(kSystem) when the directory
// cannot be read.
std::vector<std::string> timelines_in(const std::string& directory);

}  // namespace paceline
