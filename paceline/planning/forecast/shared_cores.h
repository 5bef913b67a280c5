#pragma once

// A pipeline whose ranks share cores: how long a plan takes when more ranks of a host want to
// compute than it has cores. The ranks that compute then share them evenly, as the kernel's
// scheduler sees to; a rank that waits takes none. Otherwise the model is simulate()'s.
//
// Thread safety: pure functions.

#include <vector>

#include "paceline/planning/schedules/simulate.h"

namespace paceline::planning {

// Seconds of a step. `host_of_rank`: of the plan's ranks; `cores`: of each host, counted in ranks
// that compute at full speed. Requires: validate(plan), a cost for each stage, cores > 0.
double seconds_on_shared_cores(const pipeline::Plan& plan, const pipeline::Costs& costs,
                               const std::vector<int>& host_of_rank, double cores);

}  // namespace paceline::planning
