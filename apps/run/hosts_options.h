#pragma once

// `paceline run` on several hosts, from --hosts, --hostfile or a SLURM allocation: which hosts, how
// each is reached, and what each is told.

#include <optional>
#include <string>
#include <vector>

#include "paceline/launcher/hosts/host_list.h"
#include "paceline/launcher/hosts/hosts_plan.h"

#include "apps/cli/option_table.h"
#include "apps/run/run_options.h"

namespace paceline::apps {

// A name for a job of --hosts without --rdzv-id: random, in a SLURM job behind the job's id.
std::string id_for_hosts();

// The hosts that the options name, each with its slots; empty when the job runs on this machine, or
// is started by hand on each. Throws UsageError, Error(kInvalid).
std::optional<std::vector<launcher::Host>> chosen_hosts(const OptionTable& table,
                                                        const launcher::LaunchOptions& launch);

// For a job without hosts: throws UsageError when options for reaching hosts were typed.
void refuse_options_of_hosts(const OptionTable& table);

// Everything that is needed to start. `run` has the checked options of host 0. Throws UsageError,
// Error(kInvalid), ProgramError.
launcher::HostsPlan plan_hosts(const OptionTable& table, const RunOptions& run,
                               const std::vector<launcher::Host>& hosts);

// The address at which the hosts meet: the one given, or one of the first host that others reach.
// Error(kInvalid) when it cannot be told.
std::string meeting_address(const OptionTable& table, const std::vector<launcher::Host>& hosts);

}  // namespace paceline::apps
