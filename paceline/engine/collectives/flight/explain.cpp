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
using flight::StuckGroup;

std::int64_t first_entered(const StuckGroup& stuck) {
  std::int64_t first = stuck.operation->entered_wall;
  for (const Position* position : stuck.inside) {
    first = std::min(first, position->at(stuck.sequence)->entered_wall);
  }
  return first;
}

// Looks for a rank that is missing in `here` but inside another StuckGroup (verdicts.h), and
// returns that group; null if there is none.
const StuckGroup* group_that_holds(const StuckGroup& here,
                                   const std::vector<StuckGroup>& stuck_groups) {
  for (const Position* missing : here.absent) {
    for (const StuckGroup& other : stuck_groups) {
      for (const Position* inside : other.inside) {
        if (&other != &here && inside->flight == missing->flight) return &other;
      }
    }
  }
  return nullptr;
}

// Explains the stuck group that causes the others to be stuck. The search begins with the group
// that has been stuck longest, or with the group named `first`, and follows the missing ranks to
// the groups in which they are.
std::optional<Explanation> explain_first_stuck(std::span<const GroupPositions> groups,
                                               std::string_view first) {
  std::vector<StuckGroup> stuck_groups;
  for (const auto& group : groups) {
    if (group.stuck_at() > 0) stuck_groups.push_back(flight::stuck_group_of(group));
  }
  if (stuck_groups.empty()) return {};
  std::sort(stuck_groups.begin(), stuck_groups.end(),
            [&](const StuckGroup& a, const StuckGroup& b) {
              const bool is_first[] = {a.group->name == first, b.group->name == first};
              return is_first[0] != is_first[1] ? is_first[0] : first_entered(a) < first_entered(b);
            });
  for (const StuckGroup& stuck : stuck_groups) {
    if (auto found = flight::find_mismatch(stuck)) return found;
  }
  std::vector<const StuckGroup*> way{&stuck_groups.front()};
  for (;;) {
    const StuckGroup* next = group_that_holds(*way.back(), stuck_groups);
    if (next == nullptr) return flight::explain_stuck_group(*way.back(), groups);
    if (const auto before = std::find(way.begin(), way.end(), next); before != way.end()) {
      // A rank that died cannot reach the operation in which the others wait.
      const auto timed_out = [](const StuckGroup* stuck) { return flight::has_timed_out(*stuck); };
      const auto is_dead = [](const StuckGroup* stuck) { return flight::some_are_silent(*stuck); };
      const auto dead = std::find_if(before, way.end(), is_dead);
      if (dead != way.end() && std::none_of(before, way.end(), timed_out))
        return flight::explain_stuck_group(**dead, groups);
      return flight::explain_crossing(std::span(before, way.end()));
    }
    way.push_back(next);
  }
}

std::optional<Explanation> why_it_waits(std::span<const Flight> flights,
                                        std::span<const GroupPositions> groups,
                                        flight::Failures failures, std::string_view first) {
  if (auto found = explain_first_stuck(groups, first)) return found;
  return flight::find_unmatched_message(flights, groups, failures);
}

}  // namespace

Explanation explain(std::span<const Flight> flights, std::string_view group) {
  const auto groups = flight::find_positions(flights);
  if (auto found = why_it_waits(flights, groups, flight::Failures::kFinal, group)) return *found;
  if (auto found = flight::find_silent_ends(flights, groups)) return *found;
  if (std::none_of(flights.begin(), flights.end(), flight::is_running)) {
    const auto all = flight::Failures::kAll;
    const auto before = flight::find_positions(flights, all);
    if (auto found = why_it_waits(flights, before, all, group)) return *found;
  }
  if (auto found = flight::find_own_error(flights)) return *found;
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
