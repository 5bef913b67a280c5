#include "paceline/engine/telemetry/timeline.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/telemetry/phase_times.h"
#include "paceline/engine/telemetry/record_file.h"
#include "paceline/engine/telemetry/timeline_file.h"

namespace paceline {

namespace {

using timeline::Span;
using Word = std::atomic_ref<std::uint64_t>;

std::uint64_t nanoseconds(Timeline::Clock::time_point moment) {
  return static_cast<std::uint64_t>(std::chrono::nanoseconds(moment.time_since_epoch()).count());
}

}  // namespace

Timeline::Timeline(const TimelineOptions& options) {
  FileDraft draft(options.directory + "/" + timeline_file_name(options.rank, options.generation),
                  0600);
  file_ = map_draft<timeline::File>(draft, "the timeline");
  auto& header = file_->header;
  header.version = timeline::kVersion;
  header.num_spans = timeline::kNumSpans;
  header.rank = options.rank;
  header.world_size = options.world_size;
  header.generation = static_cast<std::uint32_t>(options.generation);
  header.pid = getpid();
  put_text(header.host, host_name());
  header.magic = timeline::kMagic;
  draft.publish();
}

Timeline::~Timeline() { munmap(file_, sizeof(timeline::File)); }

void Timeline::name_group(std::uint32_t number, std::string_view name) noexcept {
  if (number < timeline::kNumGroups) put_text(file_->groups[number], name);
}

std::uint32_t Timeline::name(std::string_view name) {
  const std::lock_guard lock(mutex_);
  const auto known = names_.find(name);
  if (known != names_.end()) return known->second;
  const auto number = static_cast<std::uint32_t>(names_.size() + 1);
  if (number >= timeline::kNumNames) return 0;
  put_text(file_->names[number], name);
  names_.emplace(name, number);
  return number;
}

void Timeline::set_clock(std::chrono::nanoseconds offset, std::chrono::nanoseconds error) noexcept {
  file_->header.clock_offset = offset.count();
  file_->header.clock_error = error.count();
}

void Timeline::add(SpanKind kind, std::uint8_t what, std::int64_t value, Clock::time_point begin,
                   Clock::time_point end) noexcept {
  Span span{};
  span.begin = nanoseconds(begin);
  span.end = nanoseconds(end);
  span.value = value;
  span.kind = static_cast<std::uint8_t>(kind);
  span.what = what;
  put(span);
}

void Timeline::add(const SpanOperation& operation, SpanTime time) noexcept {
  Span span{};
  span.begin = time.begin;
  span.end = time.end;
  span.value = static_cast<std::int64_t>(operation.count);
  span.sequence = operation.sequence;
  span.group = operation.group;
  span.peer = operation.peer;
  span.kind = static_cast<std::uint8_t>(SpanKind::kOperation);
  span.what = operation.op;
  span.dtype = operation.dtype;
  span.failed = operation.failed ? 1 : 0;
  put(span);
}

void Timeline::add(const SpanCall& call, SpanTime time) noexcept {
  Span span{};
  span.begin = time.begin;
  span.end = time.end;
  span.value = static_cast<std::int64_t>(call.number);
  span.sequence = call.method;
  span.group = call.other;
  span.kind = static_cast<std::uint8_t>(call.kind);
  span.failed = call.failed ? 1 : 0;
  put(span);
}

// Two threads write to the same slot only when one of them is 65,536 spans behind. The slot then
// holds a mixture of two spans: the reader skips it, or, if it carries the newer stamp, shows one
// span of a wrong length.
void Timeline::put(Span span) noexcept {
  const std::uint64_t number = Word(file_->header.next).fetch_add(1, std::memory_order_relaxed) + 1;
  Span& place = file_->spans[number % timeline::kNumSpans];
  Word(place.stamp).store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  span.thread = this_thread();
  std::memcpy(reinterpret_cast<std::byte*>(&place) + sizeof place.stamp,
              reinterpret_cast<const std::byte*>(&span) + sizeof span.stamp,
              sizeof span - sizeof span.stamp);
  Word(place.stamp).store(number, std::memory_order_release);
}

std::shared_ptr<Timeline> open_timeline(
    int rank, int world_size, int generation,
    const std::function<std::optional<std::string>(const std::string&)>& variable) {
  const auto directory = variable("PACELINE_TIMELINE_DIR");
  if (!directory || directory->empty()) return nullptr;
  static std::mutex mutex;                                                       // guards open
  static auto* const open = new std::map<std::string, std::weak_ptr<Timeline>>;  // by path
  const std::lock_guard lock(mutex);
  auto& known = (*open)[*directory + "/" + timeline_file_name(rank, generation)];
  if (auto timeline = known.lock()) return timeline;
  try {
    auto timeline =
        std::make_shared<Timeline>(TimelineOptions{*directory, rank, world_size, generation});
    known = timeline;
    return timeline;
  } catch (const Error& error) {
    log::warning(fmt::format("no timeline will be recorded: {}", error.what()));
    return nullptr;
  }
}

void PhaseTimes::record(Phase phase, Clock::time_point begin, Clock::time_point end) {
  if (!timeline_) return;
  timeline_->add(SpanKind::kPhase, static_cast<std::uint8_t>(phase), 0, begin, end);
}

void PhaseTimes::record_step(std::int64_t step, Clock::time_point begin) {
  if (timeline_) timeline_->add(SpanKind::kStep, 0, step, begin, Clock::now());
}

}  // namespace paceline
