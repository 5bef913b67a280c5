#pragma once

// Records the activities of one rank with their times: the phases of its steps, its collectives and
// messages, its checkpoints. The newest 65,536 spans are kept in a mapped file of 4 MiB, which
// survives the process however it ends. `paceline run --timeline FILE` puts the spans of all ranks
// on one clock (launcher/job_timeline/timeline_trace.h).
//
// Cost of a span: one store of 64 bytes, about 40 ns with the caller's reading of the clock,
// without allocation, lock or system call. A forked child must not record.
//
// Thread safety: every method may be called from any thread. The groups and the workers of a rank
// share ownership of the timeline with programs that record spans of their own.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "paceline/engine/telemetry/phase_times.h"

namespace paceline {

namespace timeline {
struct File;
struct Span;
}  // namespace timeline

enum class SpanKind : std::uint8_t {
  kPhase = 1,       // `what` is a Phase
  kOperation = 2,   // `what` is the number of an operation of paceline/engine/collectives
  kStep = 3,        // `value` is the step
  kCheckpoint = 4,  // a background write to the disk; `value` is the step
  kCall = 5,  // a remote call (engine/rpc/workers.h), until the reply; `value` is the call's number
  kHandler = 6,  // a remote call at the callee, while its handler runs; `value` as for kCall
};

// Nanoseconds of the monotonic clock.
struct SpanTime {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct SpanOperation {
  std::uint8_t op = 0;
  std::uint8_t dtype = 0;
  std::uint64_t count = 0;
  std::uint32_t sequence = 0;
  std::uint32_t group = 0;
  std::int32_t peer = 0;
  bool failed = false;
};

struct SpanCall {
  SpanKind kind = SpanKind::kCall;
  std::uint32_t method = 0, other = 0;  // numbers that Timeline::name() returned
  std::uint64_t number = 0;             // the call's number, the same at both ends
  bool failed = false;
};

struct TimelineOptions {
  std::string directory;
  int rank = 0;
  int world_size = 1;
  int generation = 0;
};

class Timeline {
 public:
  using Clock = std::chrono::steady_clock;

  // Makes DIRECTORY/rank-RRR-GGG.timeline and reserves its space. Throws Error(kSystem), which
  // names the path.
  explicit Timeline(const TimelineOptions& options);
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  void name_group(std::uint32_t number, std::string_view name) noexcept;
  // Returns a number for the name of a method or a worker, or 0 when all 255 numbers are taken.
  // Takes a lock.
  std::uint32_t name(std::string_view name);
  // Stores the measured offset of this host's clock and its possible error (timeline::Header).
  void set_clock(std::chrono::nanoseconds offset, std::chrono::nanoseconds error) noexcept;

  void add(SpanKind kind, std::uint8_t what, std::int64_t value, Clock::time_point begin,
           Clock::time_point end) noexcept;
  void add(const SpanOperation& operation, SpanTime time) noexcept;
  void add(const SpanCall& call, SpanTime time) noexcept;

 private:
  void put(timeline::Span span) noexcept;

  timeline::File* file_ = nullptr;
  std::mutex mutex_;  // guards names_
  std::map<std::string, std::uint32_t, std::less<>> names_;
};

// The timeline of a rank in the directory PACELINE_TIMELINE_DIR; null when that is unset or empty.
// All groups and workers of the rank in this process share one timeline. If the directory cannot be
// written, each call logs a warning and returns null.
std::shared_ptr<Timeline> open_timeline(
    int rank, int world_size, int generation,
    const std::function<std::optional<std::string>(const std::string&)>& variable);

// The number and the names of the phases (phase_times.h).
inline constexpr std::size_t kNumPhases = 7;

constexpr std::string_view name_of(Phase phase) {
  constexpr std::array<std::string_view, kNumPhases> kNames = {
      "data", "forward", "backward", "communication", "optimizer", "evaluation", "checkpoint"};
  return kNames[static_cast<std::size_t>(phase)];
}

}  // namespace paceline
