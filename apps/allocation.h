#pragma once

// `paceline run` where another launcher has already given out machines or started processes.

#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/rendezvous/launch_environment.h"
#include "paceline/launcher/hosts/host_list.h"

#include "apps/option_table.h"

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

}  // namespace paceline::apps
