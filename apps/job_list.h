#pragma once

// The jobs of this user on this machine, as their launchers describe them.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <sys/types.h>

namespace paceline::apps {

struct JobRank {
  int rank = 0;
  pid_t pid = -1;
  std::vector<int> cpus;
};

struct JobEntry {
  std::string socket;  // for launch::ask_job()
  std::string id;
  pid_t supervisor = -1, launcher = -1;
  std::vector<std::string> command;
  std::int64_t started = 0;  // seconds since 1970
  int generation = 0, world_size = 1, num_local_ranks = 1;
  std::string log_directory, flight_directory;  // empty: none
  std::vector<JobRank> ranks;                   // those that run on this machine
};

// What a launcher answers to "describe"; nothing when it is anything else.
std::optional<JobEntry> parse_job(const std::string& socket, const std::string& answer);

// Oldest first. Jobs of others, and those that end meanwhile, are left out.
std::vector<JobEntry> list_jobs();

// The job that the arguments name by its id, the beginning of it, or a pid of its launcher; without
// arguments the only one that runs. UsageError when none or several are meant.
JobEntry find_job(const std::vector<std::string>& arguments);

// "./train --epochs 3", cut to `width`.
std::string short_command(const JobEntry& job, std::size_t width);
// "42 s", "3:07", "2:03:07".
std::string age_text(std::int64_t seconds);

}  // namespace paceline::apps
