#include "paceline/engine/collectives/flight/explain.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "paceline/engine/collectives/flight/positions.h"
#include "paceline/engine/collectives/flight/verdicts.h"

namespace paceline {

std::string_view name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kNothing:
      return "nothing";
    case Verdict::kFinished:
      return "finished";
    case Verdict::kStraggler:
      return "straggler";
    case Verdict::kMismatch:
      return "mismatch";
    case Verdict::kDied:
      return "died";
    case Verdict::kNeverEntered:
      return "never_entered";
    case Verdict::kStuck:
      return "stuck";
    case Verdict::kCrossed:
      return "crossed";
    case Verdict::kMessage:
      return "message";
    case Verdict::kFailed:
      return "failed";
    case Verdict::kUndecided:
      return "undecided";
  }
  return "unknown";
}

namespace {

using flight::GroupPositions;
using flight::Position;
using flight::Stand;

std::int64_t first_entered(const Stand& stand) {
  std::int64_t first = stand.operation->entered_wall;
  for (const Position* position : stand.inside) {
    first = std::min(first, position->at(stand.sequence)->entered_wall);
  }
  return first;
}

// Looks for a rank that is missing in `here` but inside another Stand (verdicts.h), and returns
// that stand; null if there is none.
const Stand* stand_that_holds(const Stand& here, const std::vector<Stand>& stands) {
  for (const Position* missing : here.absent) {
    for (const Stand& other : stands) {
      for (const Position* inside : other.inside) {
        if (&other != &here && inside->flight == missing->flight) return &other;
      }
    }
  }
  return nullptr;
}

// Explains the stand that causes the others. The search begins with the oldest stand, or with that
// of the group named `first`, and follows the ranks that are missing.
std::optional<Explanation> where_it_stands(std::span<const GroupPositions> groups,
                                           std::string_view first) {
  std::vector<Stand> stands;
  for (const auto& group : groups) {
    if (group.stands_at() > 0) stands.push_back(flight::stand_of(group));
  }
  if (stands.empty()) return {};
  std::sort(stands.begin(), stands.end(), [&](const Stand& a, const Stand& b) {
    const bool is_first[] = {a.group->name == first, b.group->name == first};
    return is_first[0] != is_first[1] ? is_first[0] : first_entered(a) < first_entered(b);
  });
  for (const Stand& stand : stands) {
    if (auto found = flight::find_mismatch(stand)) return found;
  }
  std::vector<const Stand*> way{&stands.front()};
  for (;;) {
    const Stand* next = stand_that_holds(*way.back(), stands);
    if (next == nullptr) return flight::explain_stand(*way.back(), groups);
    if (const auto before = std::find(way.begin(), way.end(), next); before != way.end()) {
      // A rank that died cannot reach the operation in which the others wait.
      const auto timed_out = [](const Stand* stand) { return flight::has_timed_out(*stand); };
      const auto is_dead = [](const Stand* stand) { return flight::some_are_silent(*stand); };
      const auto dead = std::find_if(before, way.end(), is_dead);
      if (dead != way.end() && std::none_of(before, way.end(), timed_out))
        return flight::explain_stand(**dead, groups);
      return flight::explain_crossing(std::span(before, way.end()));
    }
    way.push_back(next);
  }
}

std::optional<Explanation> why_it_waits(std::span<const Flight> flights,
                                        std::span<const GroupPositions> groups,
                                        flight::Failures failures, std::string_view first) {
  if (auto found = where_it_stands(groups, first)) return found;
  return flight::find_lonely_message(flights, groups, failures);
}

}  // namespace

Explanation explain(std::span<const Flight> flights, std::string_view group) {
  const auto groups = flight::find_positions(flights);
  if (auto found = why_it_waits(flights, groups, flight::Failures::kPresent, group)) return *found;
  if (auto found = flight::find_silent_ends(flights, groups)) return *found;
  if (std::none_of(flights.begin(), flights.end(), flight::is_running)) {
    const auto all = flight::Failures::kAll;
    const auto before = flight::find_positions(flights, all);
    if (auto found = why_it_waits(flights, before, all, group)) return *found;
  }
  if (auto found = flight::find_own_words(flights)) return *found;
  return flight::explain_rest(groups);
}

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
