#include "paceline/engine/telemetry/timeline_file.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>

#include <fcntl.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/safe_files.h"
#include "paceline/engine/telemetry/record_file.h"

namespace paceline {
namespace {

bool is_known(std::uint8_t kind) {
  return kind >= static_cast<std::uint8_t>(SpanKind::kPhase) &&
         kind <= static_cast<std::uint8_t>(SpanKind::kHandler);
}

// Whether a time is less than 146 years, so that its sum with an offset does not overflow.
bool is_moment(std::uint64_t nanoseconds) { return nanoseconds < std::uint64_t{1} << 62; }

bool is_offset(std::int64_t nanoseconds) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 61;
  return nanoseconds > -kLargest && nanoseconds < kLargest;
}

TimelineSpan to_span(const timeline::Span& span, std::int64_t clock_offset) {
  return {.kind = static_cast<SpanKind>(span.kind),
          .what = span.what,
          .dtype = span.dtype,
          .failed = span.failed != 0,
          .sequence = span.sequence,
          .group = span.group,
          .peer = span.peer,
          .thread = span.thread,
          .value = span.value,
          .begin = static_cast<std::int64_t>(span.begin) + clock_offset,
          .end = static_cast<std::int64_t>(span.end) + clock_offset};
}

void take_spans(const timeline::File& file, RankTimeline& timeline) {
  const auto& header = file.header;
  for (std::size_t i = 0; i < file.spans.size(); ++i) {
    const auto& span = file.spans[i];
    const bool whole = span.stamp > 0 && span.stamp <= header.next &&
                       header.next - span.stamp < timeline::kNumSpans &&
                       span.stamp % timeline::kNumSpans == i;
    if (!whole || !is_known(span.kind) || !is_moment(span.end) || span.begin > span.end) continue;
    timeline.spans.push_back(to_span(span, header.clock_offset));
  }
  std::ranges::stable_sort(timeline.spans, {}, &TimelineSpan::begin);
}

// Reads the first bytes of a timeline; returns the number of bytes.
std::size_t read_file(const std::string& path, std::span<std::byte> into) {
  const Fd file = open_to_read(path);
  if (!file)
    fail(ErrorCode::kSystem, "opening the timeline {}: {}", path, describe_refusal(path, errno));
  const ssize_t got = read_whole(file.get(), into);
  if (got < 0) throw system_error(fmt::format("reading the timeline {}", path));
  return static_cast<std::size_t>(got);
}

}  // namespace

RankTimeline read_timeline(const std::string& path) {
  const auto file = std::make_unique<timeline::File>();
  const auto got = read_file(path, std::as_writable_bytes(std::span(file.get(), 1)));
  const auto& header = file->header;
  if (got != sizeof(timeline::File) || header.magic != timeline::kMagic ||
      header.version != timeline::kVersion || header.num_spans != timeline::kNumSpans) {
    fail(ErrorCode::kCorrupt, "{}: not a timeline of this version", path);
  }
  if (header.rank < 0 || header.rank >= header.world_size) {
    fail(ErrorCode::kCorrupt, "{}: written by rank {} of {}", path, header.rank, header.world_size);
  }
  if (!is_offset(header.clock_offset) || !is_offset(header.clock_error)) {
    fail(ErrorCode::kCorrupt, "{}: the clock offset is implausibly large", path);
  }
  RankTimeline timeline;
  timeline.rank = header.rank;
  timeline.world_size = header.world_size;
  timeline.generation = header.generation;
  timeline.pid = header.pid;
  timeline.host = printable(header.host);
  timeline.clock_offset = header.clock_offset;
  timeline.clock_error = header.clock_error;
  timeline.num_recorded = header.next;
  for (const auto& name : file->groups) timeline.groups.push_back(printable(name));
  for (const auto& name : file->names) timeline.names.push_back(printable(name));
  take_spans(*file, timeline);
  return timeline;
}

std::string pack_timeline(const std::string& path) {
  std::string bytes(sizeof(timeline::File) + 1, '\0');
  const auto length = read_file(path, std::as_writable_bytes(std::span(bytes)));
  if (length > sizeof(timeline::File))
    fail(ErrorCode::kCorrupt, "{}: larger than any timeline", path);
  bytes.resize(length);
  bytes.resize(bytes.find_last_not_of('\0') + 1);
  return bytes;
}

namespace {

// Opens a timeline for writing; refuses a link to another file.
Fd open_timeline(const std::string& path, int flags) {
  Fd file = open_to_write(path, flags, 0600);
  if (file) return file;
  fail(ErrorCode::kSystem, "opening the timeline {}: {}", path, describe_refusal(path, errno));
}

}  // namespace

void unpack_timeline(const std::string& packed, const std::string& path) {
  if (packed.size() > sizeof(timeline::File)) {
    fail(ErrorCode::kCorrupt, "{} bytes are more than any timeline has", packed.size());
  }
  const Fd file = open_timeline(path, O_WRONLY | O_CREAT | O_TRUNC);
  const auto bytes = std::as_bytes(std::span(packed));
  if (!write_whole_at(file.get(), 0, bytes) ||
      ::ftruncate(file.get(), sizeof(timeline::File)) != 0) {
    throw system_error(fmt::format("writing the timeline {}", path));
  }
}

void shift_timeline(const std::string& path, std::chrono::nanoseconds offset,
                    std::chrono::nanoseconds error) {
  const Fd file = open_timeline(path, O_RDWR);
  timeline::Header header{};
  const auto bytes = std::as_writable_bytes(std::span(&header, 1));
  const bool is_whole = read_whole_at(file.get(), 0, bytes) == std::ssize(bytes);
  if (!is_whole || !is_offset(header.clock_offset) || !is_offset(header.clock_error) ||
      !is_offset(offset.count()) || !is_offset(error.count())) {
    fail(ErrorCode::kCorrupt, "{}: the clock offset is implausibly large", path);
  }
  header.clock_offset += offset.count();
  header.clock_error += error.count();
  if (!write_whole_at(file.get(), 0, bytes)) {
    throw system_error(fmt::format("writing the timeline {}", path));
  }
}

std::string timeline_file_name(int rank, int generation) {
  return fmt::format("rank-{:03}-{:03}.timeline", rank, generation);
}

std::vector<std::string> timelines_in(const std::string& directory) {
  std::error_code error;
  auto paths = records_in(directory, ".timeline", error);
  if (error) {
    fail(ErrorCode::kSystem, "the timelines in {} cannot be read: {}", directory, error.message());
  }
  return paths;
}

}  // namespace paceline
