#include "paceline/engine/core/json_text.h"

#include "paceline/engine/core/check.h"

namespace paceline {

using nlohmann::json;

std::string json_text(const json& value, int indent) {
  return value.dump(indent, ' ', false, json::error_handler_t::replace);
}

std::string json_text(const nlohmann::ordered_json& value, int indent) {
  return value.dump(indent, ' ', false, json::error_handler_t::replace);
}

std::string strict_json_text(const json& value, std::string_view what, int indent) {
  try {
    return value.dump(indent);
  } catch (const json::exception& error) {
    fail(ErrorCode::kInvalid, "{} is not UTF-8: {}", what, error.what());
  }
}

json parse_json(std::string_view text) { return json::parse(text); }

json parse_json_or_discard(std::string_view text) { return json::parse(text, nullptr, false); }

}  // namespace paceline
