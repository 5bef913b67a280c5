#pragma once

// --roles and --until: the roles of a job's ranks, and the number of ranks that follows from them.

#include <optional>

#include "paceline/launcher/job/launch_options.h"

#include "apps/option_table.h"

namespace paceline::apps {

void declare_roles_options(OptionTable& table, launcher::LaunchOptions& launch);

// What these options decide together with others. `world_size`: the ranks of all hosts, where they
// are known. Otherwise, without --nproc-per-node, sets the number of this node's ranks. Throws
// UsageError.
void check_roles(const OptionTable& table, launcher::LaunchOptions& launch,
                 std::optional<int> world_size);

}  // namespace paceline::apps
