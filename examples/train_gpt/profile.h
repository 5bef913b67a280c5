#pragma once

// The description of a GPT that the planner needs (planning/forecast/job_profile.h): measurements
// of its layers, and which parts of them can be divided among ranks.

#include <cstdint>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/planning/forecast/job_profile.h"

namespace train_gpt {

struct Options;

// Collective. `samples`: the number of sequences in a pass.
void describe_gpt(paceline::ProcessGroup& group, const Options& options, std::int64_t vocabulary,
                  std::int64_t samples, paceline::planning::JobProfile& profile);

}  // namespace train_gpt
