#include "paceline/engine/core/json_text.h"

#include <set>
#include <string>
#include <vector>

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

namespace {

// Receives every event of the parser before a value is stored, so that a hostile text is refused
// before it costs memory.
class StrictEvents {
 public:
  StrictEvents(std::string_view where, int max_depth) : where_(where), max_depth_(max_depth) {}

  bool operator()(int depth, nlohmann::json::parse_event_t event, const nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) {
      if (depth >= max_depth_) {
        fail(ErrorCode::kCorrupt, "{}: JSON nested more than {} levels deep", where_, max_depth_);
      }
      keys_.resize(static_cast<std::size_t>(depth) + 1);
      keys_.back().clear();
    } else if (event == Event::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys_.at(static_cast<std::size_t>(depth) - 1).insert(key).second) {
        fail(ErrorCode::kCorrupt, "{}: \"{}\" is named twice", where_, key);
      }
    }
    return true;
  }

 private:
  std::string_view where_;
  int max_depth_;
  std::vector<std::set<std::string>> keys_;  // the keys of each open object, outermost first
};

}  // namespace

nlohmann::json parse_strict_json(std::string_view text, std::string_view where, int max_depth) {
  StrictEvents events(where, max_depth);
  nlohmann::json value;
  try {
    value = nlohmann::json::parse(text, std::ref(events));
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::kCorrupt, "{}: not valid JSON: {}", where, error.what());
  }
  if (!value.is_object()) fail(ErrorCode::kCorrupt, "{}: not a JSON object", where);
  return value;
}

}  // namespace paceline
