#pragma once

// The options of `paceline run`. Each is declared once, in a table that fills RunOptions.

#include <chrono>
#include <optional>
#include <string>

#include "paceline/engine/core/system/topology.h"
#include "paceline/launcher/hosts/hosts_agent.h"
#include "paceline/launcher/ranks/launch_options.h"

#include "apps/cli/option_table.h"

namespace paceline::apps {

inline constexpr long kMaxThreads = 4096;  // of a rank
inline constexpr long kMaxLocalRanks = 4096;

struct RunOptions {
  launcher::LaunchOptions launch;
  std::string remote_paceline;  // the command's path on other hosts; empty: as on this host
  std::chrono::nanoseconds start_timeout = launcher::HostsPlan().start_timeout;
  int host_retries = 20;
  std::string rdzv_backend = "paceline";
  bool dry_run = false, print_config = false;
};

void declare_run_options(OptionTable& table, RunOptions& run);

// Declares only the options that set how many ranks run on this machine and where; for other
// commands.
void declare_rank_options(OptionTable& table, launcher::LaunchOptions& launch);

// The next two functions check options that depend on each other; call them after
// OptionTable::read(). `topology` is used for "auto". `world_size` has a value only with a list of
// hosts. Both throw UsageError, which names the flag or variable, the value and what is allowed.
void check_rank_options(const OptionTable& table, const Topology& topology,
                        launcher::LaunchOptions& launch);
void check_run_options(const OptionTable& table, const Topology& topology,
                       launcher::LaunchOptions& launch, std::optional<int> world_size = {});

}  // namespace paceline::apps
