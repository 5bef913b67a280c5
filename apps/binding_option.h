#pragma once

// The value of --bind, for every command that has it.

#include <optional>
#include <string>

#include "paceline/launcher/placement/placement.h"

namespace paceline::apps {

inline constexpr const char* kBindValues =
    "core, cache, numa, socket, none or map:SET;SET;... with one set like 0-3,8 for each rank";

// Nothing when `text` is none of kBindValues.
std::optional<launcher::Binding> parse_binding(const std::string& text);

// "core", "map:0-3;4-7": what parse_binding would take.
std::string format_binding(const launcher::Binding& binding);

// torchrun's --numa-binding: node, socket, exclusive, core-complex. Nothing for anything else.
std::optional<launcher::Binding> parse_numa_binding(const std::string& text);

}  // namespace paceline::apps
