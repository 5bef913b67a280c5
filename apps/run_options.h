#pragma once

// The options of `paceline run`: declared once for CLI11 (help, environment variables), then
// checked into LaunchOptions.

#include <chrono>
#include <string>

#include <CLI/CLI.hpp>

#include "paceline/core/topology.h"
#include "paceline/job/launch_options.h"

#include "apps/command_line.h"

namespace paceline::apps {

// As typed, or as the PET_* variables say. Empty: not given.
struct RunTexts {
  std::string nproc_per_node, nnodes, node_rank, master_addr, master_port;
  std::string rdzv_id, rdzv_endpoint, rdzv_backend, rdzv_conf;
  std::string max_restarts, restart_window, fork_server, monitor_interval, chaos, chaos_seed;
  std::string hosts, hostfile, ssh_command, remote_paceline, export_names, start_timeout,
      host_retries;
  std::string backend, threads_per_rank, bind, numa_binding, log_dir, tee, redirects,
      local_ranks_filter, role, shutdown_timeout, timeline, hang_timeout, hang_action,
      straggler_after, config;
  bool standalone = false, encrypt = false, report_bindings = false, no_python = false;
  bool all_ranks = false, dry_run = false, print_config = false;
};

void declare_run_options(CLI::App& app, RunTexts& texts);

// Those of them that say how many ranks run on this machine and where; for other commands.
void declare_rank_options(CLI::App& app, RunTexts& texts);
launch::PlacementRequest check_rank_options(const RunTexts& texts, const CommandLine& line,
                                            const Topology& topology);

// Throws UsageError: flag or variable, value and range named. `topology` answers "auto".
launch::LaunchOptions check_run_options(const RunTexts& texts, const CommandLine& line,
                                        const Topology& topology);

// MAX of "MIN:MAX", N of "N".
std::string most_nodes(const std::string& nnodes);

// Where the value of `flag` comes from, for messages: the flag, its variable, or a file's line.
std::string source_of(const std::string& flag, const CommandLine& line);

// A whole number from `min` to `max`, or UsageError.
long check_integer(const CommandLine& line, const std::string& flag, const std::string& text,
                   long min, long max);

// Seconds, or UsageError.
std::chrono::nanoseconds check_seconds(const CommandLine& line, const std::string& flag,
                                       const std::string& text);

// "PET_NPROC_PER_NODE" of "--nproc-per-node".
std::string variable_of(const std::string& flag);

}  // namespace paceline::apps
