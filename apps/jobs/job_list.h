#pragma once

// The jobs of this user on this machine, as their launchers describe them. A job on several hosts
// may have several entries on this machine: one for each of its agents, and one for the
// launcher that started it with --hosts.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <sys/types.h>

namespace paceline::apps {

// The help text for the argument that names a job.
inline constexpr char kJobHelp[] = "A job's id or launcher, as paceline ps shows them";

struct JobRank {
  int rank = 0;
  pid_t pid = -1;
  std::vector<int> cpus;
};

struct JobEntry {
  std::string socket;  // for launcher::ask_job()
  std::string id;
  bool id_is_shared = false;             // other jobs may have the same id: "none"
  pid_t supervisor = -1, launcher = -1;  // pids; the supervisor is the agent's parent process
  std::vector<std::string> command;
  std::int64_t started = 0;  // seconds since 1970
  int generation = 0, world_size = 1, num_local_ranks = 1;
  std::string log_directory, flight_directory;  // empty: none
  std::vector<JobRank> ranks;                   // the ranks that run on this machine
  bool of_hosts = false;                        // an agent that a launcher of --hosts started
  std::vector<std::string> hosts;               // of a launcher of --hosts; empty for an agent

  bool is_launcher() const { return !hosts.empty(); }
  // Whether other ranks of the job may be on other hosts or in another entry.
  bool is_part() const { return of_hosts || is_launcher() || world_size > num_local_ranks; }
};

// One job: its parts on this machine.
struct Job {
  std::vector<JobEntry> agents;
  std::optional<JobEntry> launcher;  // the launcher of --hosts, if it runs here
  // The launcher and the agents; never empty.
  std::vector<JobEntry> entries() const;
  const std::string& id() const { return launcher ? launcher->id : agents.front().id; }
};

// Reads a launcher's answer to "describe"; nullopt if `answer` is any other text.
std::optional<JobEntry> parse_job(const std::string& socket, const std::string& answer);

// Lists jobs, oldest first. Jobs of other users, and jobs that end meanwhile, are left out;
// launchers that do not answer, for instance stopped ones, are named on stderr. Takes at most some
// seconds, even if other processes listen on many such sockets.
std::vector<JobEntry> list_jobs();

// Groups entries by job. Entries are grouped if both are parts (is_part()), have the same id and
// have no rank in common, with at most one launcher per job; entries whose id other jobs may share
// ("none") stay separate.
std::vector<Job> group_jobs(const std::vector<JobEntry>& entries);

// The job that the arguments name by its id, a prefix of the id, or a launcher's pid; without
// arguments, the only running job. The pid of an agent selects only that agent's part of the job.
// UsageError if no job or several jobs match; the message lists the jobs with their pids.
Job find_job(const std::vector<std::string>& arguments);
// The only agent of that job on this machine. UsageError when there is none or there are several.
JobEntry find_agent(const std::vector<std::string>& arguments);

// The message about a job that has no rank on this machine, only its launcher of --hosts, and so
// cannot be inspected here.
std::string no_ranks_here(const Job& job);

// The ranks as text: "4", "ranks 0-1 of 4", "on 2 hosts".
std::string ranks_text(const JobEntry& job);
// The command as text, such as "./train --epochs 3", cut to `width`.
std::string short_command(const JobEntry& job, std::size_t width);
// The age as text: "42 s", "3:07", "2:03:07".
std::string age_text(std::int64_t seconds);

}  // namespace paceline::apps
