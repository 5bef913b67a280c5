#pragma once

// How many threads a rank should compute with when its launcher leaves that open: mpirun and srun
// start ranks side by side, and every one of them would take all cores that it sees. `paceline run`
// divides them before the ranks start; here the ranks of a host do it themselves, by the rule that
// a core is divided among those that may run on it. Ranks that are bound to cores of their own keep
// them.

#include <string>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

// The share of rank `self`, at least 1; `cores`: what each rank of the host may run on, as numbers
// of physical cores. Pure.
int thread_share(const std::vector<std::vector<int>>& cores, std::size_t self);

// Collective. For ranks that such a launcher started, with others on the host: the share becomes
// this process's OMP_NUM_THREADS, and that of OpenMP if it is loaded already, unless the user has
// set the variable; and PACELINE_THREAD_SHARE, which says that no user has. What began to compute
// before keeps its threads. Error(kSystem) when the machine cannot be read, and those of
// collectives.
void share_cores(ProcessGroup& group, const std::string& launcher);

}  // namespace paceline
