#pragma once

// JSON from a file that another user may have written: no duplicate keys, no deep nesting,
// nothing after the value.
//
// For sources only: nlohmann types stay out of public headers.

#include <string_view>

#include <nlohmann/json.hpp>

namespace paceline {

// Error(kCorrupt) as `where: …` when the text is not one JSON object, names a key twice or nests
// more than `max_depth` levels.
nlohmann::json parse_strict_json(std::string_view text, std::string_view where, int max_depth);

}  // namespace paceline
