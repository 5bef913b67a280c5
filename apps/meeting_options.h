#pragma once

// How the machines of a job meet, and how often a failed one is started again: torchrun's --nnodes,
// --node-rank, --master-*, --rdzv-*, --max-restarts; and what is done to it on purpose.

#include "paceline/job/launch_options.h"

#include "apps/option_checker.h"
#include "apps/run_options.h"

namespace paceline::apps {

// Fill their part of `options`; throw UsageError.
void check_meeting(const Checker& checker, const RunTexts& texts, launch::LaunchOptions& options);
void check_restarts(const Checker& checker, const RunTexts& texts, launch::LaunchOptions& options);
void check_chaos(const Checker& checker, const RunTexts& texts, launch::LaunchOptions& options);

}  // namespace paceline::apps
