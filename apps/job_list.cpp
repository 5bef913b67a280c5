#include "apps/job_list.h"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "paceline/core/deadline.h"
#include "paceline/core/error.h"
#include "paceline/launch/job_socket.h"
#include "paceline/launch/line_formatter.h"
#include "paceline/launch/running_jobs.h"

#include "apps/start_preview.h"
#include "apps/usage_error.h"

namespace paceline::apps {
namespace {

using namespace std::chrono_literals;

constexpr auto kLongestAnswer = 5s;

std::string ids_of(const std::vector<JobEntry>& jobs) {
  std::string text;
  for (const JobEntry& job : jobs) text += fmt::format("{}{}", text.empty() ? "" : ", ", job.id);
  return text;
}

bool is_meant(const JobEntry& job, const std::string& name) {
  return job.id.starts_with(name) || fmt::to_string(job.supervisor) == name ||
         fmt::to_string(job.launcher) == name;
}

}  // namespace

std::optional<JobEntry> parse_job(const std::string& socket, const std::string& answer) {
  try {
    const auto json = nlohmann::json::parse(answer);
    JobEntry job;
    job.socket = socket;
    job.id = launch::neutralise(json.at("job").get<std::string>());
    json.at("supervisor").get_to(job.supervisor);
    json.at("launcher").get_to(job.launcher);
    json.at("command").get_to(job.command);
    json.at("started").get_to(job.started);
    json.at("generation").get_to(job.generation);
    json.at("world_size").get_to(job.world_size);
    json.at("num_local_ranks").get_to(job.num_local_ranks);
    json.at("log_directory").get_to(job.log_directory);
    json.at("flight_directory").get_to(job.flight_directory);
    for (const auto& rank : json.at("ranks")) {
      job.ranks.push_back({rank.at("rank").get<int>(), rank.at("pid").get<pid_t>(),
                           rank.at("cpus").get<std::vector<int>>()});
    }
    return job;
  } catch (const nlohmann::json::exception&) {
    return {};
  }
}

std::vector<JobEntry> list_jobs() {
  std::vector<JobEntry> jobs;
  for (const std::string& socket : launch::find_marks()) {
    try {
      auto job =
          parse_job(socket, launch::ask_job(socket, "describe", Deadline::after(kLongestAnswer)));
      if (job) jobs.push_back(std::move(*job));
    } catch (const Error&) {
      // Another user's, or over by now.
    }
  }
  std::stable_sort(jobs.begin(), jobs.end(),
                   [](const JobEntry& a, const JobEntry& b) { return a.started < b.started; });
  return jobs;
}

JobEntry find_job(const std::vector<std::string>& arguments) {
  if (arguments.size() > 1) throw UsageError(fmt::format("'{}' was not expected", arguments[1]));
  std::vector<JobEntry> jobs = list_jobs();
  if (arguments.empty()) {
    if (jobs.empty()) throw UsageError("no job of yours runs on this machine");
    if (jobs.size() > 1) {
      throw UsageError(fmt::format("which of the {} jobs? {}", jobs.size(), ids_of(jobs)));
    }
    return jobs.front();
  }
  const std::string& name = arguments.front();
  std::vector<JobEntry> meant;
  for (JobEntry& job : jobs) {
    if (job.id == name) return job;
    if (is_meant(job, name)) meant.push_back(job);
  }
  if (meant.size() == 1) return meant.front();
  if (meant.size() > 1) throw UsageError(fmt::format("'{}' may be {}", name, ids_of(meant)));
  throw UsageError(jobs.empty() ? fmt::format("no job '{}': none of yours runs here", name)
                                : fmt::format("no job '{}'; there are {}", name, ids_of(jobs)));
}

std::string short_command(const JobEntry& job, std::size_t width) {
  const std::string text = launch::neutralise(command_text(job.command));
  return text.size() > width ? text.substr(0, width - 3) + "..." : text;
}

std::string age_text(std::int64_t seconds) {
  if (seconds < 60) return fmt::format("{} s", seconds);
  if (seconds < 3600) return fmt::format("{}:{:02}", seconds / 60, seconds % 60);
  return fmt::format("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
}

}  // namespace paceline::apps
