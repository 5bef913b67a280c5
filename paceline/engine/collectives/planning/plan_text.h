#pragma once

// Plans in words.

#include <string>

#include "paceline/engine/collectives/planning/planner.h"

namespace paceline {

// "all_reduce of 262144 x float32 (1 MiB)", "all_to_all of 1024 x float32 (4 KiB a block)".
std::string describe(const PlanRequest& request);

// "2 latencies, 6 messages, 1.5 MiB through sockets".
std::string describe(const Effort& work);

}  // namespace paceline
