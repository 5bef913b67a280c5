#include "paceline/engine/collectives/flight/idle_verdicts.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "paceline/engine/collectives/flight/straggler.h"
#include "paceline/engine/collectives/flight/whereabouts.h"
#include "paceline/engine/collectives/flight/words.h"

namespace paceline::flight {

std::optional<Explanation> find_lonely_message(std::span<const Flight> flights,
                                               std::span<const GroupPositions> groups,
                                               Failures failures) {
  const Flight* who = nullptr;
  const FlightOperation* what = nullptr;
  for (const Flight& flight : flights) {
    for (const auto& operation : flight.operations) {
      if (operation.state == FlightState::kDone || !is_message(operation)) continue;
      if (failures == Failures::kPresent && is_left_behind(flight, operation)) continue;
      if (what != nullptr && what->entered_wall <= operation.entered_wall) continue;
      who = &flight;
      what = &operation;
    }
  }
  if (what == nullptr) return {};
  const GroupPositions* const group = find_group(groups, *who, what->call.group);
  const auto seconds = waited(*who, *what);
  Explanation found{.verdict = Verdict::kMessage, .ranks = {who->rank}};
  found.waited_seconds = seconds.value_or(0);
  if (what->state == FlightState::kFailed) {
    found.sentence =
        fmt::format("rank {} failed in {}{}: {}", who->rank, full_text(*what, group),
                    seconds ? " after " + seconds_text(*seconds) : "", words_of(*who, *what));
  } else {
    found.sentence =
        fmt::format("rank {} {} in {}{}", who->rank, seconds ? "has been waiting" : "is waiting",
                    full_text(*what, group), seconds ? " for " + seconds_text(*seconds) : "");
  }
  if (group != nullptr) {
    found.group = group->name;
    for (const Position& position : group->ranks) {
      if (position.group_rank != what->call.peer) continue;
      found.sentence += fmt::format(
          "; {}{}", last_finished(fmt::format("rank {}", position.flight->rank), position),
          whereabouts(position, groups));
    }
  }
  return found;
}

std::optional<Explanation> find_silent_ends(std::span<const Flight> flights,
                                            std::span<const GroupPositions> groups) {
  std::vector<int> ranks;
  std::string last;
  for (const Flight& flight : flights) {
    if (!ended_silently(flight) || flight.exit_code == 0) continue;  // no rank waits for it
    ranks.push_back(flight.rank);
    if (!flight.operations.empty()) last = full_text(flight.operations.back(), flight, groups);
  }
  if (ranks.empty()) return {};
  // How they ended is not in the records: what they wrote last, or the launcher, may say it.
  const std::string text =
      last.empty()
          ? fmt::format("{} ended before the first operation", ranks_text(ranks))
          : fmt::format("{} ended outside of any operation, after {}", ranks_text(ranks), last);
  return Explanation{.verdict = Verdict::kDied, .sentence = text, .ranks = ranks};
}

std::optional<Explanation> find_own_words(std::span<const Flight> flights) {
  const Flight* who = nullptr;
  for (const Flight& flight : flights) {
    if (last_words(flight).empty() && flight.end != FlightEnd::kException) continue;
    const bool has_failed = flight.exit_code.value_or(0) != 0;
    if (who == nullptr || (has_failed && who->exit_code.value_or(0) == 0)) who = &flight;
  }
  if (who == nullptr) return {};
  const std::string words = last_words(*who);
  const std::string why = words.empty() ? "it ended with an exception" : words;
  return Explanation{
      .verdict = Verdict::kFailed,
      .sentence = fmt::format("rank {} failed outside of any operation: {}", who->rank, why),
      .ranks = {who->rank}};
}

namespace {

// Of any group, also of one that was made again since.
bool have_finished_any(std::span<const GroupPositions> groups) {
  for (const auto& group : groups) {
    for (const auto& position : group.ranks) {
      const auto& operations = position.flight->operations;
      const bool has = std::any_of(operations.begin(), operations.end(), [](const auto& operation) {
        return operation.state == FlightState::kDone && !is_message(operation);
      });
      if (has) return true;
    }
  }
  return false;
}

}  // namespace

Explanation explain_rest(std::span<const GroupPositions> groups) {
  const GroupPositions* widest = nullptr;
  for (const auto& group : groups) {
    const bool has_any = std::any_of(group.ranks.begin(), group.ranks.end(),
                                     [](const Position& p) { return p.last != nullptr; });
    if (has_any && (widest == nullptr || group.ranks.size() > widest->ranks.size())) {
      widest = &group;
    }
  }
  if (widest == nullptr) {
    return {.verdict = Verdict::kNothing,
            .sentence = have_finished_any(groups) ? "no rank is waiting in a collective"
                                                  : "no rank finished a collective"};
  }
  std::map<std::uint32_t, std::vector<int>> by_last;
  const FlightOperation* last = nullptr;
  for (const Position& position : widest->ranks) {
    by_last[position.last == nullptr ? 0 : position.last->sequence].push_back(
        position.flight->rank);
    if (position.last != nullptr && (last == nullptr || position.last->sequence > last->sequence)) {
      last = position.last;
    }
  }
  Explanation found{.verdict = Verdict::kFinished, .group = widest->name};
  found.sequence = last->sequence;
  if (by_last.size() == 1) {
    found.sentence = fmt::format(
        "{} {} finished the same operations, the last one {}",
        widest->ranks.size() == 1 ? "the" : "all",
        widest->ranks.size() == 1 ? "one rank" : fmt::format("{} ranks", widest->ranks.size()),
        full_text(*last, widest));
  } else {
    found.sentence = fmt::format("no rank is waiting in a collective of group {};", widest->name);
    for (const auto& [sequence, ranks] : by_last) {
      found.sentence +=
          fmt::format("{} {} last finished #{}", found.sentence.ends_with(";") ? "" : ",",
                      ranks_text(ranks), sequence);
    }
  }
  if (const auto straggler = find_straggler(*widest)) {
    found.verdict = Verdict::kStraggler;
    found.ranks = {straggler->rank};
    found.waited_seconds = straggler->waited_seconds;
    found.sentence +=
        fmt::format("; rank {} came last to {} of {} and kept the others waiting {} of {}",
                    straggler->rank, straggler->times_last, straggler->num_operations,
                    seconds_text(straggler->waited_seconds), seconds_text(straggler->span_seconds));
  }
  return found;
}

}  // namespace paceline::flight
