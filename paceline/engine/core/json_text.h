#pragma once

// JSON as text and back. nlohmann's writer and parser are large templates, which a source that
// calls them compiles; here they are compiled once for all.
//
// For sources only: nlohmann types stay out of public headers. Thread safety: pure functions.

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace paceline {

// In one line, or indented by so many spaces. Bytes that are not UTF-8 become U+FFFD.
std::string json_text(const nlohmann::json& value, int indent = -1);
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);
// Error(kInvalid) as `what is not UTF-8: …` for bytes that are not UTF-8.
std::string strict_json_text(const nlohmann::json& value, std::string_view what, int indent = -1);

// Throws nlohmann::json::parse_error unless the text is one JSON value.
nlohmann::json parse_json(std::string_view text);
// A value that is_discarded() instead.
nlohmann::json parse_json_or_discard(std::string_view text);

// JSON from a file that another user may have written: no duplicate keys, no deep nesting, nothing
// after the value. Error(kCorrupt) as `where: …` when the text is not one JSON object, names a key
// twice or nests more than `max_depth` levels.
nlohmann::json parse_strict_json(std::string_view text, std::string_view where, int max_depth);

}  // namespace paceline
