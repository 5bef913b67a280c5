#include "paceline/engine/collectives/flight/rank_line.h"

#include <string_view>

#include <fmt/format.h>

#include "paceline/engine/collectives/flight/words.h"

namespace paceline {
namespace {

std::string_view process_text(const Flight& flight) {
  if (flight.end == FlightEnd::kInOrder) return "left in order";
  if (flight.end == FlightEnd::kFailed) return "left after a failure";
  if (flight.end == FlightEnd::kException) return "ended with an exception";
  switch (flight.process) {
    case FlightProcess::kRunning:
      return "running";
    case FlightProcess::kStopped:
      return "stopped";
    case FlightProcess::kGone:
      return "gone";
    case FlightProcess::kUnknown:
      break;
  }
  return "on another machine";
}

}  // namespace

std::string describe_rank(const Flight& flight) {
  std::string text = fmt::format("rank {} ({}, pid {}, {}):", flight.rank, flight.host, flight.pid,
                                 process_text(flight));
  const FlightOperation* last = nullptr;
  const FlightOperation* open = nullptr;
  for (const auto& operation : flight.operations) {
    const bool is_open =
        operation.state == FlightState::kStarted || operation.state == FlightState::kFailed;
    if (is_open && open == nullptr) open = &operation;
    if (operation.state == FlightState::kDone && open == nullptr) last = &operation;
  }
  text +=
      last == nullptr ? " finished nothing" : " last finished " + flight::full_text(*last, nullptr);
  if (open != nullptr) {
    text += fmt::format(", then {} {}", open->state == FlightState::kFailed ? "failed in" : "is in",
                        flight::full_text(*open, nullptr));
  }
  if (flight.num_torn > 0) text += fmt::format(", {} records torn", flight.num_torn);
  return text;
}

}  // namespace paceline
