#include "paceline/collectives/flight/positions.h"

#include <algorithm>
#include <map>
#include <utility>

#include "paceline/collectives/collective.h"

namespace paceline::flight {
namespace {

bool is_unfinished(const FlightOperation& operation) {
  return operation.state == FlightState::kStarted || operation.state == FlightState::kFailed;
}

Position position_of(const Flight& flight, const FlightGroup& group) {
  Position position{.flight = &flight, .group_rank = group.rank, .number = group.number};
  const auto is_of_group = [&](const FlightOperation& operation) {
    return operation.call.group == group.number && operation.call.group_hash == group.hash &&
           operation.sequence > 0 && !is_message(operation);
  };
  for (const auto& operation : flight.operations) {
    if (!is_of_group(operation) || !is_unfinished(operation)) continue;
    if (position.open == nullptr || operation.sequence < position.open->sequence) {
      position.open = &operation;
    }
  }
  for (const auto& operation : flight.operations) {
    if (!is_of_group(operation) || operation.state != FlightState::kDone) continue;
    const bool is_before = position.open == nullptr || operation.sequence < position.open->sequence;
    if (is_before && (position.last == nullptr || operation.sequence > position.last->sequence)) {
      position.last = &operation;
    }
  }
  return position;
}

}  // namespace

bool is_message(const FlightOperation& operation) {
  const auto op = static_cast<Op>(operation.call.op);
  return op == Op::kSend || op == Op::kReceive;
}

const FlightOperation* Position::at(std::uint32_t sequence) const {
  for (const auto& operation : flight->operations) {
    if (operation.call.group == number && operation.sequence == sequence &&
        !is_message(operation)) {
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

std::vector<GroupPositions> find_positions(std::span<const Flight> flights) {
  std::map<std::pair<std::uint64_t, std::uint32_t>, GroupPositions> groups;
  for (const Flight& flight : flights) {
    std::map<std::pair<std::uint64_t, std::uint32_t>, const FlightGroup*> newest;
    for (const FlightGroup& group : flight.groups) newest[{group.hash, group.generation}] = &group;
    for (const auto& [key, group] : newest) {
      auto& found = groups[key];
      found.hash = group->hash;
      found.name = group->name;
      found.world_size = std::max(found.world_size, group->world_size);
      found.ranks.push_back(position_of(flight, *group));
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
      std::any_of(flight.operations.begin(), flight.operations.end(),
                  [](const auto& operation) { return operation.state == FlightState::kFailed; });
  return flight.process == FlightProcess::kGone && flight.end == FlightEnd::kOpen && !failed &&
         flight.failure.empty();
}

}  // namespace paceline::flight
