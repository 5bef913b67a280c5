#include "paceline/engine/collectives/flight/words.h"

#include <algorithm>

#include <fmt/format.h>

#include "paceline/engine/collectives/collective.h"

namespace paceline::flight {
namespace {

Op op_of(const FlightOperation& operation) { return static_cast<Op>(operation.call.op); }

// In the world, as in all records; where that is not known, in the group.
std::string number_of(int rank, const GroupPositions* group) {
  if (group != nullptr) {
    for (const auto& position : group->ranks) {
      if (position.group_rank == rank) return fmt::to_string(position.flight->rank);
    }
  }
  return fmt::format("{} of the group", rank);
}

std::string other_side(const FlightOperation& operation, const GroupPositions* group) {
  const int peer = operation.call.peer;
  return peer < 0 ? "any rank" : "rank " + number_of(peer, group);
}

}  // namespace

std::string ranks_text(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i;
    while (end + 1 < ranks.size() && ranks[end + 1] == ranks[end] + 1) ++end;
    if (i > 0) text += ", ";
    text += fmt::to_string(ranks[i]);
    if (end > i) text += fmt::format("-{}", ranks[end]);
    i = end + 1;
  }
  return text;
}

std::string short_text(const FlightOperation& operation) {
  const auto name = name_of(op_of(operation));
  return operation.sequence > 0 ? fmt::format("{} #{}", name, operation.sequence)
                                : std::string(name);
}

std::string agreed_text(const FlightOperation& operation, const GroupPositions* group) {
  const Op op = op_of(operation);
  std::string text = fmt::format("{} x {}", name_of(operation.call.dtype), operation.call.count);
  if (reduces(op)) {
    text += fmt::format(", {}", name_of(static_cast<ReduceOp>(operation.call.reduce_op)));
  }
  if (has_root(op)) {
    const int root = operation.call.peer;
    text += ", root " + (group != nullptr ? number_of(root, group) : fmt::to_string(root));
  }
  return fmt::format("{}{}", name_of(op),
                     op == Op::kBarrier || makes_group(op) ? "" : " (" + text + ")");
}

std::string full_text(const FlightOperation& operation, const GroupPositions* group) {
  std::string details;
  const auto add = [&](const std::string& detail) {
    details += (details.empty() ? "" : ", ") + detail;
  };
  const std::string agreed = agreed_text(operation, group);
  if (const auto bracket = agreed.find('('); bracket != std::string::npos) {
    add(agreed.substr(bracket + 1, agreed.size() - bracket - 2));
  }
  if (is_message(operation)) {
    add(fmt::format("{} {}, tag {}", op_of(operation) == Op::kSend ? "to" : "from",
                    other_side(operation, group), operation.call.tag));
  }
  if (group != nullptr && !group->name.empty()) add("group " + group->name);
  return short_text(operation) + (details.empty() ? "" : " (" + details + ")");
}

std::string full_text(const FlightOperation& operation, const Flight& flight,
                      std::span<const GroupPositions> groups) {
  return full_text(operation, find_group(groups, flight, operation.call.group));
}

std::string seconds_text(double seconds) {
  return seconds >= 0.1 ? fmt::format("{:.1f} s", seconds) : fmt::format("{:.3f} s", seconds);
}

}  // namespace paceline::flight
