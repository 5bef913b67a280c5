// The messages that tests pin: one table, which is read as a text. A better wording is changed in
// the sources and here, and in no test. tests/harness/says.h compares;
// tests/readme/messages_test.py checks that each name is used, and used names exist.

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include "tests/harness/says.h"

namespace paceline::harness {
namespace {

struct Message {
  std::string_view name;
  std::string_view text;
};

// Sorted by the command or room, then by the order in which a user may meet them.
constexpr Message kMessages[] = {
    // ---- paceline run
    {"run.first_failure", "rank {} failed first: {}"},

    // ---- launcher rooms, planning, and the other commands

    // ---- engine, files and training: errors of a rank
};

}  // namespace

std::vector<std::string> message_parts(std::string_view name, std::vector<std::string> arguments) {
  const auto* const found = std::find_if(std::begin(kMessages), std::end(kMessages),
                                         [&](const Message& one) { return one.name == name; });
  if (found == std::end(kMessages)) {
    throw std::invalid_argument(fmt::format("tests/harness/messages.cpp has no '{}'", name));
  }
  std::vector<std::string> parts(1);
  std::string_view left = found->text;
  auto argument = arguments.begin();
  for (auto hole = left.find("{}"); hole != std::string_view::npos; hole = left.find("{}")) {
    parts.back() += left.substr(0, hole);
    left.remove_prefix(hole + 2);
    argument == arguments.end() ? parts.push_back("") : parts.back().append(*argument++);
  }
  if (argument != arguments.end()) {
    throw std::invalid_argument(fmt::format("'{}' has fewer {{}} than arguments", found->text));
  }
  parts.back() += left;
  return parts;
}

bool contains_parts(std::string_view text, const std::vector<std::string>& parts) {
  const auto rest_follows = [&](std::size_t end) {
    for (std::size_t i = 1; i < parts.size(); ++i) {
      const auto next = text.find(parts[i], end);
      if (next == std::string_view::npos || text.substr(end, next - end).find('\n') != text.npos)
        return false;
      end = next + parts[i].size();
    }
    return true;
  };
  for (auto at = text.find(parts[0]); at != std::string_view::npos;
       at = text.find(parts[0], at + 1)) {
    if (rest_follows(at + parts[0].size())) return true;
  }
  return false;
}

}  // namespace paceline::harness
