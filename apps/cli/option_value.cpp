#include "apps/cli/option_value.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paceline/engine/core/option_text.h"
#include "paceline/launcher/output/line_formatter.h"

#include "apps/cli/suggestion.h"

namespace paceline::apps {

namespace {

std::string refusal(const std::string& text, const std::string& allowed) {
  return fmt::format("'{}' is not {}", launcher::neutralise_in_line(text), allowed);
}

std::string whole_numbers(long min, long max) {
  return fmt::format("a whole number from {} to {}", min, max);
}

CLI::Validator accept_if(const std::function<bool(const std::string&)>& is_good,
                         const std::function<std::string(const std::string&)>& allowed) {
  return {[=](const std::string& text) {
            return is_good(text) ? std::string() : refusal(text, allowed(text));
          },
          ""};
}

}  // namespace

void refuse_value(const std::string& source, const std::string& text, const std::string& allowed) {
  throw UsageError(fmt::format("{}: {}", source, refusal(text, allowed)));
}

long whole_number(const std::string& source, const std::string& text, long min, long max,
                  const std::string& also, const std::string& key) {
  const auto value = parse_number<long>(text, min, max);
  if (!value) refuse_value(source, key + text, whole_numbers(min, max) + also);
  return *value;
}

std::chrono::nanoseconds seconds_number(const std::string& source, const std::string& text,
                                        double max, const std::string& key, double min) {
  const auto value = parse_number<double>(text, min, max);
  if (!value) {
    refuse_value(source, key + text, fmt::format("a number of seconds from {} to {}", min, max));
  }
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(*value));
}

std::vector<std::string> items_of(const std::string& text) {
  std::vector<std::string> items;
  std::istringstream list(text);
  for (std::string item; std::getline(list, item, ',');) items.push_back(item);
  if (text.ends_with(',')) items.emplace_back();
  return items;
}

std::string one_of(const std::vector<std::string>& words, const std::string& typed) {
  return fmt::format("one of {}{}", fmt::join(words, ", "), did_you_mean(typed, words));
}

CLI::Validator is_whole_number(long min, long max) {
  return accept_if(
      [=](const std::string& text) { return parse_number<long>(text, min, max).has_value(); },
      [=](const std::string&) { return whole_numbers(min, max); });
}

CLI::Validator is_number(double min, double max) {
  return accept_if(
      [=](const std::string& text) { return parse_number<double>(text, min, max).has_value(); },
      [=](const std::string&) { return fmt::format("a number from {} to {}", min, max); });
}

CLI::Validator is_one_of(const std::vector<std::string>& words) {
  return accept_if(
      [=](const std::string& text) {
        return std::find(words.begin(), words.end(), text) != words.end();
      },
      [=](const std::string& text) { return one_of(words, text); });
}

}  // namespace paceline::apps
