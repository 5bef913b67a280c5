#pragma once

// `paceline run` on several hosts, from --hosts, --hostfile or a SLURM allocation: chooses the
// hosts, how each one is reached, and the options that each one gets.

#include <optional>
#include <string>
#include <vector>

#include "paceline/launcher/hosts/host_list.h"
#include "paceline/launcher/hosts/hosts_agent.h"

#include "apps/cli/option_table.h"
#include "apps/run/run_options.h"

namespace paceline::apps {

// The name of a job on several hosts without --rdzv-id: random; in a SLURM job it begins with the
// SLURM job's id.
std::string id_for_hosts();

// The hosts of the job, each with its number of ranks. nullopt if the job runs on this machine
// only, or if the user starts a launcher on each machine. Throws UsageError, Error(kInvalid).
std::optional<std::vector<launcher::Host>> chosen_hosts(const OptionTable& table,
                                                        const launcher::LaunchOptions& launch);

// Call this if chosen_hosts() returned nullopt: throws UsageError if options for reaching hosts
// were typed.
void refuse_options_of_hosts(const OptionTable& table);

// Everything that is needed to start the job. `run` contains the checked options of host 0. Throws
// UsageError, Error(kInvalid), ProgramError.
launcher::HostsPlan plan_hosts(const OptionTable& table, const RunOptions& run,
                               const std::vector<launcher::Host>& hosts);

// The address at which the hosts meet: the one that was given, or an address of the first host that
// the others can reach. Error(kInvalid) if it cannot be determined.
std::string meeting_address(const OptionTable& table, const std::vector<launcher::Host>& hosts);

}  // namespace paceline::apps
