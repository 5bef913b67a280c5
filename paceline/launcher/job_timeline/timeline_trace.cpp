#include "paceline/launcher/job_timeline/timeline_trace.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <set>

#include <fcntl.h>
#include <unistd.h>

#include "paceline/engine/collectives/collective.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/telemetry/phase_times.h"
#include "paceline/engine/telemetry/timeline.h"
#include "paceline/engine/telemetry/timeline_file.h"

namespace paceline::launcher {

namespace {

// The shift from the clock of host `from` to the clock of host `to`, through the launcher's clock.
ClockShift between(const std::vector<ClockShift>& hosts, std::size_t from, std::size_t to) {
  if (from == to) return {};
  return {hosts[from].offset - hosts[to].offset, hosts[from].error + hosts[to].error};
}

bool agree(const ClockShift& a, const ClockShift& b) {
  return std::chrono::abs(a.offset - b.offset) <= a.error + b.error;
}

// `shift` without the rank's own measurement, which the timeline already contains.
ClockShift without(const ClockShift& shift, const ClockShift& own) {
  return {shift.offset - own.offset, shift.error - own.error};
}

}  // namespace

std::vector<ClockShift> shifts_to_one_clock(const std::vector<TimelineOrigin>& timelines,
                                            const std::vector<ClockShift>& hosts) {
  std::map<std::uint32_t, std::size_t> first_hosts;  // the host of rank 0, by generation
  for (const TimelineOrigin& one : timelines) {
    if (one.rank == 0) first_hosts.emplace(one.generation, one.host);
  }
  std::vector<ClockShift> shifts;
  for (const TimelineOrigin& one : timelines) {
    const std::size_t common =
        first_hosts.empty() ? timelines.front().host : first_hosts.begin()->second;
    const auto first = first_hosts.find(one.generation);
    const bool known = first != first_hosts.end();
    const bool measured = known && (one.host == first->second ||
                                    (one.own.error > std::chrono::nanoseconds(0) &&
                                     agree(one.own, between(hosts, one.host, first->second))));
    shifts.push_back(measured ? between(hosts, first->second, common)
                              : without(between(hosts, one.host, common), one.own));
  }
  return shifts;
}

namespace {

constexpr std::size_t kMaxSpans = 2'000'000;

// The path of the file until it is complete.
std::string temporary_path_of(const std::string& path) { return path + ".part"; }

class NewFile {
 public:
  explicit NewFile(const std::string& path)
      : path_(path), temporary_path_(temporary_path_of(path)) {
    unlink(temporary_path_.c_str());  // a file of an earlier job, or a link that another user made
    file_.reset(std::fopen(temporary_path_.c_str(), "wxe"));
    if (!file_) throw system_error("opening the trace " + temporary_path_);
  }
  ~NewFile() {
    if (file_) unlink(temporary_path_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(const std::string& text) {
    if (std::fwrite(text.data(), 1, text.size(), file_.get()) != text.size()) refuse();
  }
  void publish() {
    if (std::fflush(file_.get()) != 0) refuse();
    if (std::rename(temporary_path_.c_str(), path_.c_str()) != 0) refuse();
    file_.reset();
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  [[noreturn]] void refuse() const { throw system_error("writing the trace " + path_); }

  const std::string path_, temporary_path_;
  std::unique_ptr<std::FILE, Close> file_;
};

std::string in_quotes(std::string_view text) {
  return json_text(nlohmann::json(std::string(text)));
}

// Nanoseconds as microseconds, the unit of the trace format.
std::string microseconds(std::int64_t nanoseconds) {
  return fmt::format("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000);
}

bool is_message(std::uint8_t op) {
  return op == static_cast<std::uint8_t>(Op::kSend) ||
         op == static_cast<std::uint8_t>(Op::kReceive);
}

bool is_call(const TimelineSpan& span) {
  return span.kind == SpanKind::kCall || span.kind == SpanKind::kHandler;
}

std::string name_in(const RankTimeline& timeline, std::uint32_t number) {
  return number > 0 && number < timeline.names.size() ? timeline.names[number] : "?";
}

std::string name_of(const TimelineSpan& span, const RankTimeline& timeline) {
  switch (span.kind) {
    case SpanKind::kPhase:
      return span.what < kNumPhases ? std::string(paceline::name_of(static_cast<Phase>(span.what)))
                                    : "?";
    case SpanKind::kOperation:
      return std::string(paceline::name_of(static_cast<Op>(span.what)));
    case SpanKind::kStep:
      return "step";
    case SpanKind::kCheckpoint:
      return "write checkpoint";
    case SpanKind::kCall:
    case SpanKind::kHandler:
      return name_in(timeline, span.sequence);
  }
  return "?";
}

std::string arguments_of(const TimelineSpan& span, const RankTimeline& timeline) {
  if (span.kind == SpanKind::kPhase) return "{}";
  if (is_call(span)) {
    return fmt::format("{{\"worker\":{}{}}}", in_quotes(name_in(timeline, span.group)),
                       span.failed ? ",\"failed\":true" : "");
  }
  if (span.kind != SpanKind::kOperation) return fmt::format("{{\"step\":{}}}", span.value);
  std::string text = fmt::format("{{\"elements\":{}", span.value);
  if (span.dtype <= static_cast<std::uint8_t>(Dtype::kBool)) {
    text +=
        fmt::format(",\"type\":{}", in_quotes(paceline::name_of(static_cast<Dtype>(span.dtype))));
  }
  if (span.sequence != 0) text += fmt::format(",\"sequence\":{}", span.sequence);
  if (is_message(span.what)) text += fmt::format(",\"peer\":{}", span.peer);
  if (span.failed) text += ",\"failed\":true";
  return text + "}";
}

// The tracks of one rank. Spans of one kind that overlap are divided among several lanes. Each lane
// is a track; from the second lane on, the track's name ends with the number of the lane.
class Tracks {
 public:
  Tracks(NewFile& out, const RankTimeline& timeline) : out_(out), timeline_(timeline) {}

  // A track on which the span overlaps no other span. Requires: called for spans in the order in
  // which they begin.
  int track_of(const TimelineSpan& span) {
    auto& lanes = lanes_[name_of_track(span)];
    for (auto& lane : lanes) {
      if (lane.end > span.begin) continue;
      lane.end = span.end;
      return lane.track;
    }
    const int track = ++num_tracks_;
    lanes.push_back({track, span.end});
    announce(track, span, lanes.size());
    return track;
  }

 private:
  struct Lane {
    int track = 0;
    std::int64_t end = 0;
  };

  std::string name_of_track(const TimelineSpan& span) const {
    switch (span.kind) {
      case SpanKind::kStep:
        return "steps";
      case SpanKind::kPhase:
        return "phases";
      case SpanKind::kCheckpoint:
        return "checkpoints in the background";
      case SpanKind::kCall:
        return "calls";
      case SpanKind::kHandler:
        return "handlers";
      case SpanKind::kOperation:
        break;
    }
    const std::string group = span.group < timeline_.groups.size() ? timeline_.groups[span.group]
                                                                   : fmt::to_string(span.group);
    return fmt::format("{} of {}", is_message(span.what) ? "messages" : "collectives", group);
  }

  void announce(int track, const TimelineSpan& span, std::size_t lane) {
    const std::string name = name_of_track(span) + (lane > 1 ? fmt::format(" ({})", lane) : "");
    const auto event = [&](const char* what, const std::string& value) {
      out_.write(
          fmt::format(",\n{{\"ph\":\"M\",\"name\":\"{}\",\"pid\":{},\"tid\":{},\"args\":{{{}}}}}",
                      what, timeline_.rank, track, value));
    };
    event("thread_name", "\"name\":" + in_quotes(name));
    event("thread_sort_index", fmt::format("\"sort_index\":{}", place_of(span)));
  }

  // The position of the track: steps first, then phases, then the rest.
  static int place_of(const TimelineSpan& span) {
    if (span.kind == SpanKind::kStep) return 0;
    if (span.kind == SpanKind::kPhase) return 1;
    if (span.kind == SpanKind::kOperation) return 2 + static_cast<int>(span.group);
    return 1000 + static_cast<int>(span.kind);
  }

  NewFile& out_;
  const RankTimeline& timeline_;
  std::map<std::string, std::vector<Lane>> lanes_;
  int num_tracks_ = 0;
};

// Writes one end of the arrow from a call to its handler; both ends have the same id.
void write_arrow(NewFile& out, const TimelineSpan& span, int rank, int track, std::int64_t origin) {
  const bool begins = span.kind == SpanKind::kCall;
  out.write(
      fmt::format(",\n{{\"ph\":\"{}\",\"name\":\"call\",\"cat\":\"call\",\"id\":\"{:x}\",{}"
                  "\"ts\":{},\"pid\":{},\"tid\":{}}}",
                  begins ? "s" : "f", static_cast<std::uint64_t>(span.value),
                  begins ? "" : "\"bp\":\"e\",", microseconds(span.begin - origin), rank, track));
}

void write_rank(NewFile& out, const RankTimeline& timeline, std::int64_t origin, std::size_t most,
                TraceSummary& summary) {
  const auto& spans = timeline.spans;
  const std::size_t first = spans.size() > most ? spans.size() - most : 0;
  Tracks tracks(out, timeline);
  for (std::size_t i = first; i < spans.size(); ++i) {
    const TimelineSpan& span = spans[i];
    const int track = tracks.track_of(span);
    out.write(fmt::format(
        ",\n{{\"ph\":\"X\",\"name\":{},\"ts\":{},\"dur\":{},\"pid\":{},\"tid\":{},\"args\":{}}}",
        in_quotes(name_of(span, timeline)), microseconds(span.begin - origin),
        microseconds(span.end - span.begin), timeline.rank, track, arguments_of(span, timeline)));
    if (is_call(span)) write_arrow(out, span, timeline.rank, track, origin);
  }
  const std::size_t written = spans.size() - first;
  summary.num_spans += written;
  summary.num_omitted += timeline.num_recorded > written ? timeline.num_recorded - written : 0;
}

// Writes the name and position of the rank's process in the trace. A rank that was started again
// has one file for each start, so this may be written more than once.
void write_ranks_name(NewFile& out, const RankTimeline& timeline, bool& is_first) {
  const std::string name = fmt::format("rank {} ({})", timeline.rank, timeline.host);
  for (const auto& [what, value] :
       {std::pair("process_name", "\"name\":" + in_quotes(name)),
        std::pair("process_sort_index", fmt::format("\"sort_index\":{}", timeline.rank))}) {
    out.write(fmt::format("{}\n{{\"ph\":\"M\",\"name\":\"{}\",\"pid\":{},\"args\":{{{}}}}}",
                          is_first ? "" : ",", what, timeline.rank, value));
    is_first = false;
  }
}

}  // namespace

std::string obstacle_to_trace(const std::string& output) {
  const auto folder = std::filesystem::absolute(output).parent_path();
  if (!std::filesystem::is_directory(folder)) return "there is no folder " + folder.string();
  std::error_code ignored;  // a loop of links is not an obstacle: the trace replaces it
  if (std::filesystem::is_directory(output, ignored)) return "it is a folder";
  const std::string temporary = temporary_path_of(output);
  unlink(temporary.c_str());
  const Fd file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file) return fmt::format("{}: {}", temporary, std::strerror(errno));
  unlink(temporary.c_str());
  return "";
}

TraceSummary write_trace(const std::vector<std::string>& paths, const std::string& output) {
  TraceSummary summary;
  std::vector<std::string> usable;
  std::int64_t origin = std::numeric_limits<std::int64_t>::max();
  for (const std::string& path : paths) {
    try {
      const RankTimeline timeline = read_timeline(path);
      if (!timeline.spans.empty()) origin = std::min(origin, timeline.spans.front().begin);
      summary.clock_error =
          std::max(summary.clock_error, static_cast<double>(timeline.clock_error) * 1e-9);
      usable.push_back(path);
    } catch (const Error& error) {
      summary.problems.emplace_back(error.what());
    }
  }
  check(!usable.empty(), "there is no timeline{}",
        summary.problems.empty() ? "" : ": " + summary.problems.front());
  NewFile out(output);
  out.write("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
  bool is_first = true;
  std::set<int> ranks;
  for (const std::string& path : usable) {
    const RankTimeline timeline = read_timeline(path);
    ranks.insert(timeline.rank);
    write_ranks_name(out, timeline, is_first);
    write_rank(out, timeline, origin, kMaxSpans / usable.size(), summary);
  }
  out.write(
      fmt::format("\n],\"otherData\":{{\"clock\":\"the monotonic one of rank 0's host\","
                  "\"clock_error_us\":{:.3f}}}}}\n",
                  summary.clock_error * 1e6));
  out.publish();
  summary.num_files = usable.size();
  summary.num_ranks = ranks.size();
  return summary;
}

std::string describe(const TraceSummary& summary) {
  std::string text =
      fmt::format("{} spans of {}", summary.num_spans, counted(summary.num_ranks, "rank"));
  if (summary.num_omitted > 0) {
    text += fmt::format(", the newest; {} older ones were not kept", summary.num_omitted);
  }
  if (summary.clock_error > 0) {
    text += fmt::format("; the hosts' clocks agree to within {:.0f} us", summary.clock_error * 1e6);
  }
  return text;
}

}  // namespace paceline::launcher
