#pragma once

// Converts JSON to text and back. nlohmann's writer and parser are large templates, compiled again
// in every source file that calls them; json_text.cpp compiles them once for all callers.
//
// Public headers must not include this header, so that they contain no nlohmann types. Thread
// safety: pure functions.

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace paceline {

// The value in one line, or indented by `indent` spaces per level. Bytes that are not UTF-8 become
// U+FFFD.
std::string json_text(const nlohmann::json& value, int indent = -1);
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);
// Like json_text(), but throws Error(kInvalid) (`what is not UTF-8: …`) for bytes that are not
// UTF-8.
std::string strict_json_text(const nlohmann::json& value, std::string_view what, int indent = -1);

// Throws nlohmann::json::parse_error unless the text is one JSON value.
nlohmann::json parse_json(std::string_view text);
// As above, but returns a value that is_discarded() instead of throwing.
nlohmann::json parse_json_or_discard(std::string_view text);

// Parses JSON from a file that another user may have written. Throws Error(kCorrupt) (`where: …`)
// when the text is not exactly one JSON object, names a key twice or nests more than `max_depth`
// levels.
nlohmann::json parse_strict_json(std::string_view text, std::string_view where, int max_depth);

}  // namespace paceline
