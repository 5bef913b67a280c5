// `paceline ps`: lists the user's jobs on this machine.

#include <algorithm>
#include <ctime>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "paceline/engine/core/json_text.h"
#include "paceline/launcher/output/line_formatter.h"

#include "apps/cli/commands.h"
#include "apps/cli/option_table.h"
#include "apps/jobs/job_list.h"

namespace paceline::apps {

namespace {

constexpr std::size_t kListedCommandWidth = 40;

std::string json_of(const std::vector<JobEntry>& jobs) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const JobEntry& job : jobs) {
    nlohmann::ordered_json entry;
    entry["job"] = job.id;
    entry["supervisor"] = job.supervisor;
    entry["launcher"] = job.launcher;
    entry["command"] = job.command;
    entry["started"] = job.started;
    entry["generation"] = job.generation;
    entry["world_size"] = job.world_size;
    entry["log_directory"] = job.log_directory;
    entry["flight_directory"] = job.flight_directory;
    entry["hosts"] = job.hosts;
    entry["ranks"] = nlohmann::ordered_json::array();
    for (const JobRank& rank : job.ranks) {
      entry["ranks"].push_back({{"rank", rank.rank}, {"pid", rank.pid}, {"cpus", rank.cpus}});
    }
    all.push_back(std::move(entry));
  }
  return json_text(all, 2) + "\n";
}

std::string table_of(const std::vector<JobEntry>& jobs) {
  if (jobs.empty()) return "no job of yours runs on this machine\n";
  std::size_t widest = 3;
  for (const JobEntry& job : jobs) widest = std::max(widest, job.id.size());
  std::string text = fmt::format("{:<{}}  {:>8}  {:>14}  {:>8}  {:<{}}  {}\n", "JOB", widest, "PID",
                                 "RANKS", "RUNS FOR", "COMMAND", kListedCommandWidth, "LOGS");
  for (const JobEntry& job : jobs) {
    text += fmt::format("{:<{}}  {:>8}  {:>14}  {:>8}  {:<{}}  {}\n", job.id, widest,
                        job.supervisor, ranks_text(job), age_text(std::time(nullptr) - job.started),
                        short_command(job, kListedCommandWidth), kListedCommandWidth,
                        launcher::neutralise_in_line(job.log_directory));
  }
  return text;
}

}  // namespace

int ps_command(const Arguments& arguments) {
  CLI::App app(
      "Lists your jobs on this machine: those that paceline run started and that still run.",
      "paceline ps");
  bool json = false, ids = false;
  OptionTable table(app, /*has_variables=*/false);
  table.flag("--json", "One JSON list, with every rank's process and cpus", bool_target(json));
  table.flag("--ids", "Only their ids, one per line", bool_target(ids));
  app.footer(
      "\nJobs in other network namespaces (most containers) are not seen.\n\n"
      "Fields of an entry of --json: job (its id), supervisor and launcher (their process ids),\n"
      "command, started (seconds since 1970), generation (0 before the first restart),\n"
      "world_size, log_directory, flight_directory, hosts (of --hosts),\n"
      "ranks (rank, pid, cpus).\n\n"
      "Examples:\n  paceline ps\n  paceline ps --json | jq '.[].job'");
  if (!table.read_line(arguments, 0)) return 0;
  const auto jobs = list_jobs();
  if (ids) {
    for (const Job& job : group_jobs(jobs)) fmt::print("{}\n", job.id());
    return 0;
  }
  fmt::print("{}", json ? json_of(jobs) : table_of(jobs));
  return 0;
}

}  // namespace paceline::apps
