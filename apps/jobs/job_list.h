#pragma once

// The jobs of this user on this machine, as their launchers describe them. A job on several hosts
// may have several entries here: one for each of its agents on this machine, and one for the
// launcher of --hosts.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <sys/types.h>

namespace paceline::apps {

// Of the word by which commands choose a job.
inline constexpr char kJobHelp[] = "A job's id or launcher, as paceline ps shows them";

struct JobRank {
  int rank = 0;
  pid_t pid = -1;
  std::vector<int> cpus;
};

struct JobEntry {
  std::string socket;  // for launcher::ask_job()
  std::string id;
  bool id_is_shared = false;  // other jobs may go by it: "none"
  pid_t supervisor = -1, launcher = -1;
  std::vector<std::string> command;
  std::int64_t started = 0;  // seconds since 1970
  int generation = 0, world_size = 1, num_local_ranks = 1;
  std::string log_directory, flight_directory;  // empty: none
  std::vector<JobRank> ranks;                   // those that run on this machine
  bool of_hosts = false;                        // a launcher of --hosts started it
  std::vector<std::string> hosts;               // of a launcher of --hosts; empty: an agent

  bool is_launcher() const { return !hosts.empty(); }
  // The others are elsewhere, or have an entry of their own.
  bool is_part() const { return of_hosts || is_launcher() || world_size > num_local_ranks; }
};

// One job: what of it is on this machine.
struct Job {
  std::vector<JobEntry> agents;
  std::optional<JobEntry> launcher;  // of --hosts
  // All of them; never empty.
  std::vector<JobEntry> entries() const;
  const std::string& id() const { return launcher ? launcher->id : agents.front().id; }
};

// What a launcher answers to "describe"; nothing when it is anything else.
std::optional<JobEntry> parse_job(const std::string& socket, const std::string& answer);

// Oldest first. Jobs of others, and those that end meanwhile, are left out; launchers that do not
// answer, as one that is stopped, are named on stderr. Takes no longer than some seconds, whatever
// others listen on.
std::vector<JobEntry> list_jobs();

// Entries of one job together. Parts with the same id are, as long as they can be: of a shared id
// that is not known, and no two have the same rank.
std::vector<Job> group_jobs(const std::vector<JobEntry>& entries);

// The job that the arguments name by its id, the beginning of it, or a pid of one of its launchers,
// which of several agents means that one alone; without arguments the only one that runs.
// UsageError when none or several are meant: it lists them with their pids.
Job find_job(const std::vector<std::string>& arguments);
// Of that job the only agent on this machine. UsageError when there is none or are several.
JobEntry find_agent(const std::vector<std::string>& arguments);

// Why a job that a launcher of --hosts alone stands for cannot be looked at here.
std::string no_ranks_here(const Job& job);

// "4", "ranks 0-1 of 4", "on 2 hosts".
std::string ranks_text(const JobEntry& job);
// "./train --epochs 3", cut to `width`.
std::string short_command(const JobEntry& job, std::size_t width);
// "42 s", "3:07", "2:03:07".
std::string age_text(std::int64_t seconds);

}  // namespace paceline::apps
