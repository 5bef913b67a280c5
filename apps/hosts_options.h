#pragma once

// `paceline run` on several hosts: who they are, how each is reached, and what each is told.

#include <optional>
#include <string>
#include <vector>

#include "paceline/launcher/hosts/host_list.h"
#include "paceline/launcher/hosts/hosts_plan.h"

#include "apps/run_options.h"

namespace paceline::apps {

// The hosts that the options name, each with its slots; nothing when the job runs on this machine,
// or is started by hand on each. Throws UsageError, Error(kInvalid).
std::optional<std::vector<launcher::Host>> chosen_hosts(const OptionTable& table,
                                                        const launcher::LaunchOptions& launch);

// For a job that has no hosts: throws UsageError when options that say how to reach them were
// typed.
void refuse_options_of_hosts(const OptionTable& table);

// Everything that is needed to start. `run` is as on host 0, checked. Throws UsageError,
// Error(kInvalid), ProgramError.
launcher::HostsPlan plan_hosts(const OptionTable& table, const RunOptions& run,
                               const std::vector<launcher::Host>& hosts);

// The address at which the hosts meet: the one given, or one of the first host that others reach.
// Error(kInvalid) when it cannot be told.
std::string meeting_address(const OptionTable& table, const std::vector<launcher::Host>& hosts);

}  // namespace paceline::apps
