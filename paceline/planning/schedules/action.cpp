#include "paceline/planning/schedules/action.h"

#include <charconv>
#include <optional>

#include "paceline/engine/core/check.h"

namespace paceline::pipeline {
namespace {

constexpr std::string_view kLetters = "FBIW";

std::optional<int> parse_number(std::string_view text) {
  int value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < 0) return std::nullopt;
  return value;
}

}  // namespace

char letter_of(ActionKind kind) { return kLetters[static_cast<std::size_t>(kind)]; }

std::string to_string(const Action& action) {
  return fmt::format("{}{}{}", action.stage, letter_of(action.kind), action.micro_batch);
}

Action parse_action(std::string_view text) {
  const std::size_t at = text.find_first_of(kLetters);
  if (at != std::string_view::npos) {
    const auto stage = parse_number(text.substr(0, at));
    const auto micro_batch = parse_number(text.substr(at + 1));
    if (stage && micro_batch) {
      return {static_cast<ActionKind>(kLetters.find(text[at])), *stage, *micro_batch};
    }
  }
  fail(ErrorCode::kInvalid,
       "'{}' is not an action of a pipeline; write stage, F, B, I or W, and micro-batch, such as "
       "0F0",
       text);
}

}  // namespace paceline::pipeline
