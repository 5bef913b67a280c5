#pragma once

// Options for the rendezvous of a job's machines and for restarts after failures: torchrun's
// --nnodes, --node-rank, --master-*, --rdzv-* and --max-restarts, and Paceline's own, such as
// --on-damage and --chaos, which injects faults.

#include "apps/cli/option_table.h"
#include "apps/run/run_options.h"

namespace paceline::apps {

// Declares the options from --standalone to --chaos-seed.
void declare_meeting_options(OptionTable& table, RunOptions& run);

// Call the functions below after OptionTable::read(). They check options that depend on each other,
// and throw UsageError.
//
// check_meeting() also fills in the node rank, endpoint, port and job id from several options.
void check_meeting(const OptionTable& table, launcher::LaunchOptions& launch);
// For a job whose user starts a launcher on each of several machines: refuses options that do not
// name the meeting point.
void require_meeting(const OptionTable& table, const launcher::LaunchOptions& launch);
void check_chaos(const OptionTable& table, const launcher::LaunchOptions& launch);

}  // namespace paceline::apps
