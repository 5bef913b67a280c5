#pragma once

// The options for where ranks run, and for their roles: --bind and --numa-binding, --roles and
// --until.

#include <optional>
#include <string>

#include "paceline/launcher/placement/placement.h"
#include "paceline/launcher/ranks/launch_options.h"

#include "apps/cli/option_table.h"

namespace paceline::apps {

inline constexpr const char* kBindValues =
    "core, cache, numa, socket, none or map:SET;SET;... with one set like 0-3,8 for each rank";

// nullopt if `text` is not one of kBindValues.
std::optional<launcher::Binding> parse_binding(const std::string& text);

// The text that parse_binding() would read: "core", "map:0-3;4-7".
std::string format_binding(const launcher::Binding& binding);

// torchrun's --numa-binding: node, socket, exclusive, core-complex. nullopt for any other text.
std::optional<launcher::Binding> parse_numa_binding(const std::string& text);

void declare_roles_options(OptionTable& table, launcher::LaunchOptions& launch);

// Applies --until to the roles, and checks --roles against other options. `world_size`: the number
// of ranks on all nodes, if it is known. If it is not known and --nproc-per-node is not given, sets
// the number of this node's ranks from --roles. Throws UsageError.
void check_roles(const OptionTable& table, launcher::LaunchOptions& launch,
                 std::optional<int> world_size);

}  // namespace paceline::apps
