#pragma once

// The texts of --dry-run and --print-config. With these options, `paceline run` starts no process.

#include <string>
#include <vector>

#include "paceline/launcher/hosts/host_list.h"
#include "paceline/launcher/hosts/hosts_agent.h"
#include "paceline/launcher/job/agent.h"

#include "apps/cli/option_table.h"

namespace paceline::apps {

// Shows every process with its cores, its memory, the variables that it gets, and its command.
std::string dry_run_text(const launcher::LaunchPlan& plan);

// As above, for a job on several hosts, with the arguments and variables that each host gets.
// `options` are those of the first host. Values that only a host can decide are marked; the secret
// is left out.
std::string hosts_preview(const launcher::HostsPlan& plan, const launcher::LaunchOptions& options);

// Shows for every option the value in effect and its origin: a flag, a variable, a file or the
// default. `hosts`: the hosts of the job; null if it runs only on this machine or is started by
// hand on each machine.
std::string config_text(const OptionTable& table, const launcher::LaunchPlan& plan,
                        const std::vector<launcher::Host>* hosts = nullptr);

}  // namespace paceline::apps
