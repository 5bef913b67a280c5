#include "paceline/engine/collectives/flight/whereabouts.h"

#include <fmt/format.h>

#include "paceline/engine/collectives/flight/words.h"

namespace paceline::flight {

const FlightOperation* unfinished_elsewhere(const Position& position) {
  for (const auto& operation : position.flight->operations) {
    const bool of_this_group = operation.call.group == position.number;
    if (of_this_group && !is_message(operation)) continue;
    // What was posted ahead is not what the rank waits in.
    if (is_message(operation) && operation.call.asynchronous) continue;
    if (is_left_behind(*position.flight, operation)) continue;
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
