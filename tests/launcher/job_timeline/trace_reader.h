#pragma once

// Reads a trace as strictly as a viewer of Chrome's trace format may.

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace paceline::launcher {

std::string read_text(const std::string& path);

// The spans, after what a viewer relies on was checked: the keys of each event and their types,
// tracks that have names, and spans of one track that do not overlap.
std::vector<nlohmann::json> strict_spans(const std::string& path);

}  // namespace paceline::launcher
