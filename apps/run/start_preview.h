#pragma once

// The texts of --dry-run and --print-config, which start nothing.

#include <string>
#include <vector>

#include "paceline/launcher/hosts/host_list.h"
#include "paceline/launcher/hosts/hosts_plan.h"
#include "paceline/launcher/job/agent.h"

#include "apps/cli/option_table.h"

namespace paceline::apps {

// Every process with its cores, its memory, the variables it gets and its command.
std::string dry_run_text(const launcher::LaunchPlan& plan);

// As above for a job on several hosts, with what each is told. `options` are those of the first;
// values that only a host can decide are marked. The secret is left out.
std::string hosts_preview(const launcher::HostsPlan& plan, const launcher::LaunchOptions& options);

// Every option: value in effect, and the flag, the variable, the file or the default it comes from.
// `hosts`: where the job runs, if it is not started on this machine alone or by hand on each.
std::string config_text(const OptionTable& table, const launcher::LaunchPlan& plan,
                        const std::vector<launcher::Host>* hosts = nullptr);

}  // namespace paceline::apps
