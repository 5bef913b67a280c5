#pragma once

// How the machines of a job meet, and how often a failed job is started again: torchrun's --nnodes,
// --node-rank, --master-*, --rdzv-*, --max-restarts; and faults on purpose, --chaos.

#include "apps/cli/option_table.h"
#include "apps/run/run_options.h"

namespace paceline::apps {

// From --standalone to --chaos-seed.
void declare_meeting_options(OptionTable& table, RunOptions& run);

// The functions below check options that depend on each other, after OptionTable::read(). All throw
// UsageError.
void check_meeting(const OptionTable& table, launcher::LaunchOptions& launch);
// For a launcher that a user starts on each of several machines: refuses options that do not say
// where the machines meet.
void require_meeting(const OptionTable& table, const launcher::LaunchOptions& launch);
void check_chaos(const OptionTable& table, const launcher::LaunchOptions& launch);

}  // namespace paceline::apps
