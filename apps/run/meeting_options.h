#pragma once

// How the machines of a job meet, and how often a failed one is started again: torchrun's --nnodes,
// --node-rank, --master-*, --rdzv-*, --max-restarts; and what is done to it on purpose.

#include "apps/cli/option_table.h"
#include "apps/run/run_options.h"

namespace paceline::apps {

// From --standalone to --chaos-seed.
void declare_meeting_options(OptionTable& table, RunOptions& run);

// Check what several options decide together, after OptionTable::read(). All throw UsageError.
void check_meeting(const OptionTable& table, launcher::LaunchOptions& launch);
// Requires that the options say where the machines meet, for a launcher that a user starts on each
// of several machines.
void require_meeting(const OptionTable& table, const launcher::LaunchOptions& launch);
void check_chaos(const OptionTable& table, const launcher::LaunchOptions& launch);

}  // namespace paceline::apps
