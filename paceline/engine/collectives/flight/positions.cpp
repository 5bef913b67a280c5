#include "paceline/engine/collectives/flight/positions.h"

#include <algorithm>
#include <map>
#include <utility>

#include "paceline/engine/collectives/collective.h"

namespace paceline::flight {
namespace {

bool is_unfinished(const FlightOperation& operation) {
  return operation.state == FlightState::kStarted || operation.state == FlightState::kFailed;
}

// Every rank learns of a lack of memory, and the group goes on.
bool is_harmless(const FlightOperation& operation) {
  return operation.state == FlightState::kFailed && operation.error == ErrorCode::kSystem &&
         static_cast<Op>(operation.call.op) == Op::kAllocate;
}

// When the group failed on this rank, which is final; 0: it has not.
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
    if (failures == Failures::kPresent && is_left_behind(flight, operation)) continue;
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

std::uint32_t GroupPositions::stands_at() const {
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

bool is_left_behind(const Flight& flight, const FlightOperation& failed) {
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
    if (is_left_behind(flight, operation)) return "";
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
        return operation.state == FlightState::kFailed && !is_left_behind(flight, operation);
      });
  return flight.process == FlightProcess::kGone && flight.end == FlightEnd::kOpen && !failed &&
         last_words(flight).empty();
}

}  // namespace paceline::flight
