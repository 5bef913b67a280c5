#include "paceline/launcher/job_timeline/job_timeline.h"

#include <filesystem>

#include <fmt/format.h>
#include <unistd.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/telemetry/timeline_file.h"
#include "paceline/launcher/job_timeline/timeline_trace.h"
#include "paceline/engine/core/shell_words.h"

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

}  // namespace paceline::launcher
