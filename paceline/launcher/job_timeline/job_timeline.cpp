#include "paceline/launcher/job_timeline/job_timeline.h"

#include <cstdlib>
#include <filesystem>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/option_text.h"
#include "paceline/engine/telemetry/timeline_file.h"
#include "paceline/launcher/job_timeline/timeline_trace.h"

namespace paceline::launcher {

JobTimeline::JobTimeline(std::string output, std::string directory, bool shared)
    : output_(std::move(output)), directory_(std::move(directory)), shared_(shared) {}

void JobTimeline::add_variables(Environment& environment, int rank, int generation) {
  if (output_.empty() || directory_.empty()) return;
  environment["PACELINE_TIMELINE_DIR"] = directory_;
  own_names_.insert(timeline_file_name(rank, generation));
}

std::vector<std::string> JobTimeline::own_files() const {
  std::vector<std::string> paths = timelines_in(directory_);
  if (!shared_) return paths;
  std::erase_if(paths, [this](const std::string& path) {
    return !own_names_.contains(std::filesystem::path(path).filename());
  });
  return paths;
}

std::string JobTimeline::finish() const {
  if (output_.empty()) return "";
  if (directory_.empty()) return "paceline: no timeline: there is no folder to record it in\n";
  try {
    const auto paths = own_files();
    if (paths.empty()) {
      return "paceline: no timeline: no rank recorded anything (does the program make a group?)\n";
    }
    const TraceSummary summary = write_trace(paths, output_);
    for (const std::string& path : paths) unlink(path.c_str());
    std::string text;
    for (const std::string& problem : summary.problems) {
      text += fmt::format("paceline: warning: left out of the timeline: {}\n", problem);
    }
    return text + fmt::format("paceline: timeline: {} ({}); open it in https://ui.perfetto.dev\n",
                              output_, describe(summary));
  } catch (const Error& error) {
    return fmt::format(
        "paceline: no timeline: {}; what the ranks recorded is in {}: paceline timeline -o {} {}\n",
        error.what(), directory_, shell_quoted(output_), shell_quoted(directory_));
  }
}

std::string JobTimeline::hand_over(const std::function<void(const std::string&)>& send) const {
  if (output_.empty()) return "";
  if (directory_.empty()) return "paceline: no timeline: there is no folder to record it in\n";
  std::string text;
  try {
    for (const std::string& path : own_files()) {
      try {
        send(pack_timeline(path));
      } catch (const Error& error) {
        text += fmt::format("paceline: warning: left out of the timeline: {}\n", error.what());
      }
      unlink(path.c_str());
    }
  } catch (const Error& error) {
    return text + fmt::format("paceline: no timeline: {}\n", error.what());
  }
  return text;
}

namespace {

std::string make_folder() {
  const char* base = std::getenv("TMPDIR");
  std::string name =
      fmt::format("{}/paceline-timelines-XXXXXX", base != nullptr && *base != '\0' ? base : "/tmp");
  if (mkdtemp(name.data()) == nullptr) throw system_error("making the folder " + name);
  return name;
}

std::string warning(const std::string& what) {
  return fmt::format("paceline: warning: left out of the timeline: {}\n", what);
}

}  // namespace

TimelineCollection::TimelineCollection(std::string output) : output_(std::move(output)) {}

TimelineCollection::~TimelineCollection() {
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

void TimelineCollection::take(std::size_t host, const std::string& packed) {
  if (output_.empty()) return;
  try {
    keep(host, packed);
  } catch (const Error& error) {
    problems_ += warning(error.what());
  }
}

void TimelineCollection::keep(std::size_t host, const std::string& packed) {
  if (folder_.empty()) folder_ = make_folder();
  const std::string path = fmt::format("{}/{:06}.timeline", folder_, arrivals_.size());
  unpack_timeline(packed, path);
  arrivals_.push_back({host, path});
}

std::string TimelineCollection::finish(const std::vector<Host>& hosts) {
  if (output_.empty()) return "";
  if (arrivals_.empty()) {
    return problems_ +
           "paceline: no timeline: no rank recorded anything (does the program make a group?), or "
           "its host was lost\n";
  }
  put_on_one_clock(hosts);
  problems_ += missing_hosts(hosts);
  std::string said = std::exchange(problems_, "") + JobTimeline(output_, folder_, false).finish();
  // Keeps the folder if files are left in it: the user has been told about them.
  if (!std::filesystem::is_empty(folder_)) folder_.clear();
  return said;
}

void TimelineCollection::put_on_one_clock(const std::vector<Host>& hosts) {
  std::vector<ClockShift> clocks;
  for (const Host& host : hosts) {
    const ClockComparison& clock = host.clock;
    clocks.push_back(clock.measured() ? ClockShift{clock.offset(), clock.error() + clock.drift()}
                                      : ClockShift{});
  }
  std::vector<TimelineOrigin> origins;
  std::vector<std::string> paths;
  for (const Arrival& arrival : arrivals_) {
    try {
      const RankTimeline timeline = read_timeline(arrival.path);
      origins.push_back({arrival.host,
                         timeline.rank,
                         timeline.generation,
                         {std::chrono::nanoseconds(timeline.clock_offset),
                          std::chrono::nanoseconds(timeline.clock_error)}});
      paths.push_back(arrival.path);
    } catch (const Error& error) {
      leave_out(hosts[arrival.host], arrival.path, error);
    }
  }
  const auto shifts = shifts_to_one_clock(origins, clocks);
  for (std::size_t i = 0; i < paths.size(); ++i) {
    if (shifts[i] == ClockShift{}) continue;
    try {
      shift_timeline(paths[i], shifts[i].offset, shifts[i].error);
    } catch (const Error& error) {
      leave_out(hosts[origins[i].host], paths[i], error);
    }
  }
}

void TimelineCollection::leave_out(const Host& host, const std::string& path, const Error& error) {
  problems_ += warning(fmt::format("{}: {}", host.name, error.what()));
  std::filesystem::remove(path);
}

std::string TimelineCollection::missing_hosts(const std::vector<Host>& hosts) const {
  std::set<std::size_t> arrived;
  for (const Arrival& arrival : arrivals_) arrived.insert(arrival.host);
  std::string text;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (arrived.contains(i)) continue;
    text += warning(fmt::format("host {}: it sent nothing", hosts[i].name));
  }
  return text;
}

}  // namespace paceline::launcher
