#include "tests/harness/says.h"

#include <algorithm>
#include <span>
#include <stdexcept>

#include "tests/harness/messages/commands.h"
#include "tests/harness/messages/ranks.h"
#include "tests/harness/messages/run.h"

namespace paceline::harness {
namespace {

const Message* find(std::string_view name) {
  for (const std::span<const Message> table :
       {std::span<const Message>(kRunMessages), std::span<const Message>(kCommandMessages),
        std::span<const Message>(kRankMessages)}) {
    const auto found = std::find_if(table.begin(), table.end(),
                                    [&](const Message& one) { return one.name == name; });
    if (found != table.end()) return &*found;
  }
  return nullptr;
}

}  // namespace

std::vector<std::string> message_parts(std::string_view name, std::vector<std::string> arguments) {
  const Message* const found = find(name);
  if (found == nullptr) {
    throw std::invalid_argument(fmt::format("tests/harness/messages/ has no '{}'", name));
  }
  std::vector<std::string> parts(1);
  std::string_view left = found->text;
  auto argument = arguments.begin();
  for (auto hole = left.find("{}"); hole != std::string_view::npos; hole = left.find("{}")) {
    parts.back() += left.substr(0, hole);
    left.remove_prefix(hole + 2);
    if (argument == arguments.end()) {
      parts.emplace_back();
    } else {
      parts.back() += *argument++;
    }
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
