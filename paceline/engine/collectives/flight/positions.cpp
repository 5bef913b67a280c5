#include "paceline/engine/collectives/flight/positions.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "paceline/engine/collectives/collective.h"
#include "paceline/engine/collectives/op_traits.h"

namespace paceline::flight {

namespace {

bool is_unfinished(const FlightOperation& operation) {
  return operation.state == FlightState::kStarted || operation.state == FlightState::kFailed;
}

// Whether the operation is a failed allocation of symmetric memory. Such a failure is harmless:
// every rank learns of the lack of memory, and the group continues.
bool is_harmless(const FlightOperation& operation) {
  return operation.state == FlightState::kFailed && operation.error == ErrorCode::kSystem &&
         static_cast<Op>(operation.call.op) == Op::kAllocate;
}

// The time of the group's first failure on this rank; 0 if none. A failed group stays failed.
std::uint64_t failed_at(const Flight& flight, const FlightGroup& group) {
  std::uint64_t first = 0;
  for (const auto& operation : flight.operations) {
    const bool has_failed = operation.call.group == group.number &&
                            operation.state == FlightState::kFailed && !is_harmless(operation);
    if (has_failed && (first == 0 || operation.ended < first)) first = operation.ended;
  }
  return first;
}

Position position_of(const Flight& flight, const FlightGroup& group, Failures failures) {
  Position position{.flight = &flight,
                    .group_rank = group.rank,
                    .number = group.number,
                    .failed_at = failed_at(flight, group)};
  const auto is_of_group = [&](const FlightOperation& operation) {
    return operation.call.group == group.number && operation.call.group_hash == group.hash &&
           operation.sequence > 0 && !is_message(operation) && !position.was_refused(operation);
  };
  for (const auto& operation : flight.operations) {
    const bool is_over = operation.state == FlightState::kDone || is_harmless(operation);
    if (!is_of_group(operation) || !is_over) continue;
    if (position.last == nullptr || operation.sequence > position.last->sequence) {
      position.last = &operation;
    }
  }
  for (const auto& operation : flight.operations) {
    if (!is_of_group(operation) || !is_unfinished(operation)) continue;
    if (position.has_passed(operation.sequence)) continue;
    if (failures == Failures::kFinal && has_continued_after(flight, operation)) continue;
    if (position.open == nullptr || operation.sequence < position.open->sequence) {
      position.open = &operation;
    }
  }
  return position;
}

}  // namespace

bool is_message(const FlightOperation& operation) {
  const auto op = static_cast<Op>(operation.call.op);
  return op == Op::kSend || op == Op::kReceive;
}

bool Position::was_refused(const FlightOperation& operation) const {
  return operation.state == FlightState::kFailed && failed_at > 0 && operation.started > failed_at;
}

const FlightOperation* Position::at(std::uint32_t sequence) const {
  for (const auto& operation : flight->operations) {
    if (operation.call.group == number && operation.sequence == sequence &&
        !is_message(operation) && !was_refused(operation)) {
      return &operation;
    }
  }
  return nullptr;
}

std::uint32_t GroupPositions::stuck_at() const {
  std::uint32_t lowest = 0;
  for (const auto& position : ranks) {
    if (position.open == nullptr) continue;
    if (lowest == 0 || position.open->sequence < lowest) lowest = position.open->sequence;
  }
  return lowest;
}

std::vector<GroupPositions> find_positions(std::span<const Flight> flights, Failures failures) {
  std::map<std::pair<std::uint64_t, std::uint32_t>, GroupPositions> groups;
  for (const Flight& flight : flights) {
    std::map<std::pair<std::uint64_t, std::uint32_t>, const FlightGroup*> newest;
    for (const FlightGroup& group : flight.groups) newest[{group.hash, group.generation}] = &group;
    for (const auto& [key, group] : newest) {
      auto& found = groups[key];
      found.hash = group->hash;
      found.name = group->name;
      found.world_size = std::max(found.world_size, group->world_size);
      found.ranks.push_back(position_of(flight, *group, failures));
    }
  }
  std::vector<GroupPositions> result;
  for (auto& [key, group] : groups) result.push_back(std::move(group));
  return result;
}

const GroupPositions* find_group(std::span<const GroupPositions> groups, const Flight& flight,
                                 std::uint32_t number) {
  for (const auto& group : groups) {
    for (const auto& position : group.ranks) {
      if (position.flight == &flight && position.number == number) return &group;
    }
  }
  return nullptr;
}

bool has_continued_after(const Flight& flight, const FlightOperation& failed) {
  if (failed.state != FlightState::kFailed) return false;
  return std::any_of(
      flight.operations.begin(), flight.operations.end(), [&](const FlightOperation& later) {
        const bool goes_on =
            later.state == FlightState::kDone || later.state == FlightState::kStarted;
        return goes_on && later.entered > failed.ended;
      });
}

std::string words_of(const Flight& flight, const FlightOperation& failed) {
  for (const auto& operation : flight.operations) {
    const bool was_before =
        operation.state == FlightState::kFailed && operation.ended < failed.ended;
    if (was_before) return failed.error ? to_string(*failed.error) : "";
  }
  return flight.failure;
}

std::string last_words(const Flight& flight) {
  for (const auto& operation : flight.operations) {
    if (has_continued_after(flight, operation)) return "";
  }
  return flight.failure;
}

std::optional<double> waited(const Flight& flight, const FlightOperation& operation) {
  std::uint64_t until = operation.ended;
  if (until == 0 && flight.process != FlightProcess::kGone) until = flight.now;
  if (until < operation.entered || until == 0) return {};
  return static_cast<double>(until - operation.entered) * 1e-9;
}

bool is_running(const Flight& flight) {
  return flight.process == FlightProcess::kRunning || flight.process == FlightProcess::kStopped;
}

bool ended_silently(const Flight& flight) {
  const bool failed =
      std::any_of(flight.operations.begin(), flight.operations.end(), [&](const auto& operation) {
        return operation.state == FlightState::kFailed && !has_continued_after(flight, operation);
      });
  return flight.process == FlightProcess::kGone && flight.end == FlightEnd::kOpen && !failed &&
         last_words(flight).empty();
}

namespace {

Op op_of(const FlightOperation& operation) { return static_cast<Op>(operation.call.op); }

// The rank's number in the world, as in all records; if that is not known, its number in the group.
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

const FlightOperation* unfinished_elsewhere(const Position& position) {
  for (const auto& operation : position.flight->operations) {
    const bool of_this_group = operation.call.group == position.number;
    if (of_this_group && !is_message(operation)) continue;
    // A rank is not blocked in messages that it has posted asynchronously.
    if (is_message(operation) && operation.call.asynchronous) continue;
    if (has_continued_after(*position.flight, operation)) continue;
    if (operation.state == FlightState::kStarted || operation.state == FlightState::kFailed) {
      return &operation;
    }
  }
  return nullptr;
}

std::string last_finished(const std::string& who, const Position& position) {
  return position.last == nullptr
             ? fmt::format("{} had finished nothing before", who)
             : fmt::format("{} last finished {}", who, short_text(*position.last));
}

std::string whereabouts(const Position& position, std::span<const GroupPositions> groups) {
  const Flight& flight = *position.flight;
  if (const auto* const operation = unfinished_elsewhere(position)) {
    const auto seconds = waited(flight, *operation);
    const bool is_there = operation->ended == 0 && is_running(flight);
    const char* const verb = !is_there ? "was" : seconds ? "has been" : "is";
    return fmt::format(" and {} in {}{}", verb, full_text(*operation, flight, groups),
                       seconds ? " for " + seconds_text(*seconds) : "");
  }
  if (flight.process == FlightProcess::kStopped) return " and is stopped";
  const std::string failure = last_words(flight);
  if (!failure.empty()) return fmt::format(" and failed: {}", failure);
  if (flight.end == FlightEnd::kException) return " and ended with an exception";
  if (flight.end == FlightEnd::kInOrder) return " and left in order";
  if (flight.process == FlightProcess::kGone) return " and its process is gone";
  return "";
}

}  // namespace paceline::flight
