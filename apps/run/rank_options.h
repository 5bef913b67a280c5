#pragma once

// Where ranks run, and what they are for: --bind and --numa-binding, --roles and --until.

#include <optional>
#include <string>

#include "paceline/launcher/placement/placement.h"
#include "paceline/launcher/ranks/launch_options.h"

#include "apps/cli/option_table.h"

namespace paceline::apps {

inline constexpr const char* kBindValues =
    "core, cache, numa, socket, none or map:SET;SET;... with one set like 0-3,8 for each rank";

// Nothing when `text` is none of kBindValues.
std::optional<launcher::Binding> parse_binding(const std::string& text);

// "core", "map:0-3;4-7": what parse_binding would take.
std::string format_binding(const launcher::Binding& binding);

// torchrun's --numa-binding: node, socket, exclusive, core-complex. Nothing for anything else.
std::optional<launcher::Binding> parse_numa_binding(const std::string& text);

void declare_roles_options(OptionTable& table, launcher::LaunchOptions& launch);

// Checks --roles and --until together with other options. `world_size`: the ranks of all hosts, if
// known. Otherwise, without --nproc-per-node, sets the number of this node's ranks. Throws
// UsageError.
void check_roles(const OptionTable& table, launcher::LaunchOptions& launch,
                 std::optional<int> world_size);

}  // namespace paceline::apps
