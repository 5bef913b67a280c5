#pragma once

// `paceline run` where another launcher has already given out machines or started processes.

#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/rendezvous/launch_environment.h"
#include "paceline/launcher/hosts/host_list.h"
#include "paceline/launcher/hosts/hosts_plan.h"

#include "apps/cli/option_table.h"
#include "apps/run/run_options.h"

namespace paceline::apps {

// The nodes of the SLURM job that this process runs in, with its tasks as slots (0 where
// --nproc-per-node is a number); nothing outside of one, in a step of one task, or when the options
// say that this machine is meant, or that nodes are started by hand. `num_nodes`: MAX of --nnodes.
// UsageError when mpirun or srun has started several of this launcher: each would be a job of its
// own; and in a job of several components.
std::optional<std::vector<launcher::Host>> allocated_hosts(
    const OptionTable& table, int num_nodes, const GetVariable& variable = process_environment());

// The name of a job of --hosts that the user gave none: random, and in a SLURM job after that.
std::string id_for_hosts(const GetVariable& variable = process_environment());

// `paceline run` on several hosts: who they are, how each is reached, and what each is told.

// The hosts that the options name, each with its slots; nothing when the job runs on this machine,
// or is started by hand on each. Throws UsageError, Error(kInvalid).
std::optional<std::vector<launcher::Host>> chosen_hosts(const OptionTable& table,
                                                        const launcher::LaunchOptions& launch);

// For a job that has no hosts: throws UsageError when options that say how to reach them were
// typed.
void refuse_options_of_hosts(const OptionTable& table);

// Everything that is needed to start. `run` is as on host 0, checked. Throws UsageError,
// Error(kInvalid), ProgramError.
launcher::HostsPlan plan_hosts(const OptionTable& table, const RunOptions& run,
                               const std::vector<launcher::Host>& hosts);

// The address at which the hosts meet: the one given, or one of the first host that others reach.
// Error(kInvalid) when it cannot be told.
std::string meeting_address(const OptionTable& table, const std::vector<launcher::Host>& hosts);

}  // namespace paceline::apps
