#pragma once

// The options for how the machines of a job meet and how often a failed job is restarted:
// torchrun's --nnodes, --node-rank, --master-*, --rdzv-* and --max-restarts; also --chaos, which
// injects faults.

#include "apps/cli/option_table.h"
#include "apps/run/run_options.h"

namespace paceline::apps {

// Declares the options from --standalone to --chaos-seed.
void declare_meeting_options(OptionTable& table, RunOptions& run);

// The functions below check options that depend on each other, after OptionTable::read(). All throw
// UsageError.
void check_meeting(const OptionTable& table, launcher::LaunchOptions& launch);
// For a job whose user starts a launcher on each of several machines: refuses options that do not
// name the meeting point.
void require_meeting(const OptionTable& table, const launcher::LaunchOptions& launch);
void check_chaos(const OptionTable& table, const launcher::LaunchOptions& launch);

}  // namespace paceline::apps
