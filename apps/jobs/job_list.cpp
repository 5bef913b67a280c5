#include "apps/jobs/job_list.h"

#include <algorithm>
#include <chrono>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/engine/core/option_text.h"
#include "paceline/launcher/diagnosis/failure_report.h"
#include "paceline/launcher/messages/running_jobs.h"
#include "paceline/launcher/output/line_formatter.h"

#include "apps/cli/commands.h"
#include "apps/cli/option_value.h"

namespace paceline::apps {

namespace {

using namespace std::chrono_literals;

constexpr auto kLongestAnswer = 5s;
constexpr std::size_t kCommandWidth = 40;
constexpr std::size_t kMaxNamed = 8;

// A list by which the user can distinguish the jobs: "none: 711 (0 of 2, ./train), 812 (1 of 2,
// ./train)".
std::string list_of(const std::vector<Job>& jobs) {
  std::string text;
  for (const Job& job : jobs) {
    text += fmt::format("{}{}:", text.empty() ? "" : "; ", job.id());
    for (const JobEntry& entry : job.entries()) {
      text += fmt::format(" {} ({}, {})", entry.supervisor, ranks_text(entry),
                          short_command(entry, kCommandWidth));
    }
  }
  return text;
}

bool has_pid(const JobEntry& job, const std::string& name) {
  return fmt::to_string(job.supervisor) == name || fmt::to_string(job.launcher) == name;
}

bool shares_a_rank(const JobEntry& a, const JobEntry& b) {
  return std::any_of(a.ranks.begin(), a.ranks.end(), [&](const JobRank& rank) {
    return std::any_of(b.ranks.begin(), b.ranks.end(),
                       [&](const JobRank& other) { return other.rank == rank.rank; });
  });
}

bool belongs_to(const JobEntry& entry, const Job& job) {
  const JobEntry first = job.entries().front();
  if (!entry.is_part() || !first.is_part() || entry.id != first.id) return false;
  if (entry.id_is_shared || first.id_is_shared) return false;
  if (entry.is_launcher()) return !job.launcher;
  return std::none_of(job.agents.begin(), job.agents.end(),
                      [&](const JobEntry& agent) { return shares_a_rank(entry, agent); });
}

// The pid of an agent selects only that agent; the pid of the launcher selects the whole job.
std::optional<Job> find_by_pid(const std::vector<Job>& jobs, const std::string& name) {
  for (const Job& job : jobs) {
    if (job.launcher && has_pid(*job.launcher, name)) return job;
    for (const JobEntry& agent : job.agents) {
      if (has_pid(agent, name)) return Job{{agent}, {}};
    }
  }
  return {};
}

std::vector<Job> find_by_id(const std::vector<Job>& jobs, const std::string& name) {
  std::vector<Job> exact, beginning;
  for (const Job& job : jobs) {
    if (job.id() == name) exact.push_back(job);
    if (job.id().starts_with(name)) beginning.push_back(job);
  }
  return exact.empty() ? beginning : exact;
}

}  // namespace

std::optional<JobEntry> parse_job(const std::string& socket, const std::string& answer) {
  try {
    const auto json = parse_json(answer);
    JobEntry job;
    job.socket = socket;
    job.id = launcher::neutralise_in_line(json.at("job").get<std::string>());
    job.id_is_shared = json.value("id_is_shared", false);
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
    job.of_hosts = json.value("of_hosts", false);
    for (const auto& host : json.value("hosts", nlohmann::json::array())) {
      job.hosts.push_back(launcher::neutralise_in_line(host.get<std::string>()));
    }
    return job;
  } catch (const nlohmann::json::exception&) {
    return {};
  }
}

namespace {

// Reports the launchers that did not answer, because otherwise the list would look complete.
void report_silent_launchers(const std::vector<std::string>& marks) {
  if (marks.empty()) return;
  std::set<pid_t> launchers;
  for (const std::string& mark : marks) launchers.insert(launcher::launcher_of(mark));
  std::vector<pid_t> named(launchers.begin(), launchers.end());
  if (named.size() > kMaxNamed) named.resize(kMaxNamed);
  say(
      fmt::format("paceline: no answer from launchers (pid {}{}): jobs of launchers that are "
                  "stopped or busy are not shown",
                  fmt::join(named, ", "), named.size() < launchers.size() ? ", ..." : ""));
}

}  // namespace

std::vector<JobEntry> list_jobs() {
  const auto marks = launcher::find_own_marks();
  const auto all = launcher::ask_jobs(marks, "describe", Deadline::after(kLongestAnswer));
  std::vector<JobEntry> jobs;
  for (const launcher::JobAnswer& answer : all.answers) {
    auto job = parse_job(answer.mark, answer.text);
    if (job && job->launcher == launcher::launcher_of(answer.mark)) jobs.push_back(std::move(*job));
  }
  report_silent_launchers(all.silent);
  std::stable_sort(jobs.begin(), jobs.end(),
                   [](const JobEntry& a, const JobEntry& b) { return a.started < b.started; });
  return jobs;
}

std::vector<JobEntry> Job::entries() const {
  std::vector<JobEntry> all;
  if (launcher) all.push_back(*launcher);
  all.insert(all.end(), agents.begin(), agents.end());
  return all;
}

std::vector<Job> group_jobs(const std::vector<JobEntry>& entries) {
  std::vector<Job> jobs;
  for (const JobEntry& entry : entries) {
    auto job = std::find_if(jobs.begin(), jobs.end(),
                            [&](const Job& other) { return belongs_to(entry, other); });
    if (job == jobs.end()) job = jobs.insert(jobs.end(), Job{});
    if (entry.is_launcher()) {
      job->launcher = entry;
    } else {
      job->agents.push_back(entry);
    }
  }
  return jobs;
}

Job find_job(const std::vector<std::string>& arguments) {
  if (arguments.size() > 1) throw UsageError(fmt::format("'{}' was not expected", arguments[1]));
  const std::vector<Job> jobs = group_jobs(list_jobs());
  if (arguments.empty()) {
    if (jobs.empty()) throw UsageError("no job of yours runs on this machine");
    if (jobs.size() == 1) return jobs.front();
    throw UsageError(
        fmt::format("which of the {} jobs? Give an id or a pid: {}", jobs.size(), list_of(jobs)));
  }
  const std::string& name = arguments.front();
  const std::vector<Job> meant = find_by_id(jobs, name);
  if (meant.size() == 1) return meant.front();
  if (meant.size() > 1) {
    throw UsageError(fmt::format(
        "'{}' matches {} jobs; give {}: {}", name, meant.size(),
        meant.front().id() == meant.back().id() ? "a pid" : "an id or a pid", list_of(meant)));
  }
  if (auto job = find_by_pid(jobs, name)) return *job;
  throw UsageError(jobs.empty() ? fmt::format("no job '{}': no job of yours runs here", name)
                                : fmt::format("no job '{}'; your jobs: {}", name, list_of(jobs)));
}

JobEntry find_agent(const std::vector<std::string>& arguments) {
  const Job job = find_job(arguments);
  if (job.agents.size() == 1) return job.agents.front();
  if (job.agents.empty()) throw UsageError(no_ranks_here(job));
  throw UsageError(
      fmt::format("{} launchers of this job are on this machine; give the pid of one: {}",
                  job.agents.size(), list_of({Job{job.agents, {}}})));
}

std::string no_ranks_here(const Job& job) {
  return fmt::format("job {} has no ranks on this machine; ask on one of its hosts: {}", job.id(),
                     fmt::join(job.launcher->hosts, ", "));
}

std::string ranks_text(const JobEntry& job) {
  if (job.is_launcher()) return "on " + counted(job.hosts.size(), "host");
  const auto count = static_cast<int>(job.ranks.size());
  if (count == job.world_size) return fmt::to_string(count);
  if (!job.is_part() || job.ranks.empty()) return fmt::format("{} of {}", count, job.world_size);
  std::vector<int> ranks;
  for (const JobRank& rank : job.ranks) ranks.push_back(rank.rank);
  return fmt::format("{} of {}", paceline::ranks_text(ranks), job.world_size);
}

std::string short_command(const JobEntry& job, std::size_t width) {
  const std::string text = launcher::neutralise_in_line(shell_line(job.command));
  return text.size() > width ? text.substr(0, width - 3) + "..." : text;
}

std::string age_text(std::int64_t seconds) {
  if (seconds < 60) return fmt::format("{} s", seconds);
  if (seconds < 3600) return fmt::format("{}:{:02}", seconds / 60, seconds % 60);
  return fmt::format("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
}

}  // namespace paceline::apps
