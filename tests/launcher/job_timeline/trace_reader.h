#pragma once

// Reads a trace as strictly as a viewer of Chrome's trace format may read it.

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace paceline::launcher {

std::string read_text(const std::string& path);

// The spans of the trace. Checks everything that a viewer relies on: the keys of each event and
// their types, that tracks have names, and that spans on one track do not overlap.
std::vector<nlohmann::json> strict_spans(const std::string& path);

}  // namespace paceline::launcher
