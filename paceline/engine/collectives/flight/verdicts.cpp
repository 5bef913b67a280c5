#include "paceline/engine/collectives/flight/verdicts.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "paceline/engine/collectives/flight/positions.h"
#include "paceline/engine/core/option_text.h"

namespace paceline::flight {

namespace {

constexpr std::size_t kFewestOperations = 20;
constexpr double kShareOfWaiting = 0.5;
constexpr double kShareOfTime = 0.1;

struct Entry {
  double seconds;
  int rank;
};

std::map<std::uint32_t, std::vector<Entry>> entries_of(const GroupPositions& group) {
  const bool one_machine =
      std::all_of(group.ranks.begin(), group.ranks.end(), [&](const Position& position) {
        return position.flight->boot == group.ranks.front().flight->boot;
      });
  std::map<std::uint32_t, std::vector<Entry>> entries;
  for (const Position& position : group.ranks) {
    for (const auto& operation : position.flight->operations) {
      if (operation.call.group != position.number || operation.sequence == 0 ||
          is_message(operation) || operation.state != FlightState::kDone) {
        continue;
      }
      const double seconds = one_machine ? static_cast<double>(operation.entered) * 1e-9
                                         : static_cast<double>(operation.entered_wall) * 1e-9;
      entries[operation.sequence].push_back({seconds, position.flight->rank});
    }
  }
  std::erase_if(entries,
                [&](const auto& item) { return item.second.size() != group.ranks.size(); });
  return entries;
}

}  // namespace

std::optional<Straggler> find_straggler(const GroupPositions& group) {
  auto entries = entries_of(group);
  if (group.ranks.size() < 2 || entries.size() < kFewestOperations) return {};
  std::map<int, Straggler> candidates;
  double total = 0;
  double first = entries.begin()->second.front().seconds;
  double last = first;
  for (auto& [sequence, ranks] : entries) {
    std::sort(ranks.begin(), ranks.end(),
              [](const Entry& a, const Entry& b) { return a.seconds < b.seconds; });
    const double gap = ranks.back().seconds - ranks[ranks.size() - 2].seconds;
    auto& candidate = candidates[ranks.back().rank];
    candidate.rank = ranks.back().rank;
    ++candidate.times_last;
    candidate.waited_seconds += gap;
    total += gap;
    first = std::min(first, ranks.front().seconds);
    last = std::max(last, ranks.back().seconds);
  }
  for (auto& [rank, candidate] : candidates) {
    candidate.num_operations = entries.size();
    candidate.span_seconds = last - first;
    if (candidate.waited_seconds > kShareOfWaiting * total &&
        candidate.waited_seconds > kShareOfTime * candidate.span_seconds) {
      return candidate;
    }
  }
  return {};
}

Stand stand_of(const GroupPositions& group) {
  Stand stand{.group = &group, .sequence = group.stands_at()};
  for (const Position& position : group.ranks) {
    const FlightOperation* const entered = position.at(stand.sequence);
    if (ended_silently(*position.flight)) stand.silent.push_back(position.flight->rank);
    if (position.has_passed(stand.sequence)) {
      stand.passed.push_back(&position);
    } else if (entered != nullptr) {
      stand.inside.push_back(&position);
      if (stand.operation == nullptr) stand.operation = entered;
    } else {
      stand.absent.push_back(&position);
    }
  }
  stand.without_records = std::max(0, group.world_size - static_cast<int>(group.ranks.size()));
  return stand;
}

Wait wait_of(const Stand& stand) {
  Wait wait;
  bool still = false;
  bool known = false;
  for (const Position* position : stand.inside) {
    const FlightOperation& operation = *position->at(stand.sequence);
    still |= operation.ended == 0 && is_running(*position->flight);
    if (const auto seconds = waited(*position->flight, operation)) {
      known = true;
      wait.seconds = std::max(wait.seconds, *seconds);
    }
  }
  const std::string who = ranks_text(ranks_of(stand.inside));
  if (!known) {
    wait.text = fmt::format("{} waited for it until the end", who);
  } else if (still) {
    wait.text = fmt::format("{} {} been waiting for {}", who,
                            stand.inside.size() == 1 ? "has" : "have", seconds_text(wait.seconds));
  } else {
    wait.text = fmt::format("{} waited {}", who, seconds_text(wait.seconds));
  }
  return wait;
}

std::vector<int> ranks_of(const std::vector<const Position*>& positions) {
  std::vector<int> ranks;
  for (const Position* position : positions) ranks.push_back(position->flight->rank);
  return ranks;
}

namespace {

// At most this many ranks are described one by one.
constexpr std::size_t kDescribed = 3;

Explanation at(Verdict verdict, const Stand& stand, std::vector<int> ranks, std::string sentence) {
  return {verdict,           std::move(sentence), std::move(ranks),
          stand.group->name, stand.sequence,      wait_of(stand).seconds};
}

Explanation died(const Stand& stand, std::span<const GroupPositions> groups) {
  std::string text;
  for (const Position& position : stand.group->ranks) {
    const Flight& flight = *position.flight;
    if (!ended_silently(flight)) continue;
    if (!text.empty()) text += "; ";
    const std::string who =
        fmt::format("rank {} (pid {} on {})", flight.rank, flight.pid, flight.host);
    const auto* const elsewhere = unfinished_elsewhere(position);
    const std::string how =
        flight.exit_code ? fmt::format("ended with exit code {}", *flight.exit_code) : "died";
    if (position.open != nullptr) {
      text += fmt::format("{} {} in {}", who, how, full_text(*position.open, stand.group));
    } else if (elsewhere != nullptr) {
      text += fmt::format("{} {} in {}", who, how, full_text(*elsewhere, flight, groups));
    } else {
      text += fmt::format("{} {} outside of any operation", who, how);
    }
    text += "; " + last_finished("it", position);
  }
  Stand others = stand;
  std::erase_if(others.inside, [](const Position* p) { return ended_silently(*p->flight); });
  if (!others.inside.empty()) {
    text += fmt::format("; {} in {}", wait_of(others).text, short_text(*stand.operation));
  }
  return at(Verdict::kDied, others, stand.silent, text);
}

Explanation never_entered(const Stand& stand, std::span<const GroupPositions> groups) {
  const auto ranks = ranks_of(stand.absent);
  std::string text = fmt::format("{} never entered {}", ranks_text(ranks),
                                 full_text(*stand.operation, stand.group));
  for (std::size_t i = 0; i < stand.absent.size() && i < kDescribed; ++i) {
    const Position& position = *stand.absent[i];
    const std::string who =
        ranks.size() == 1 ? "it" : fmt::format("rank {}", position.flight->rank);
    text += "; " + last_finished(who, position) + whereabouts(position, groups);
  }
  return at(Verdict::kNeverEntered, stand, ranks, text + "; " + wait_of(stand).text);
}

// This verdict names no rank, because the waiting ranks are not the cause.
Explanation undecided(const Stand& stand) {
  return at(Verdict::kUndecided, stand, {},
            fmt::format("{} did not end; {} of its {} ranks {} no records here (on another "
                        "machine, or left in order); {}",
                        full_text(*stand.operation, stand.group), stand.without_records,
                        stand.group->world_size, stand.without_records == 1 ? "has" : "have",
                        wait_of(stand).text));
}

const Position* first_to_fail(const Stand& stand) {
  const Position* first = nullptr;
  std::uint64_t when = 0;
  for (const Position* position : stand.inside) {
    const FlightOperation& operation = *position->at(stand.sequence);
    if (operation.state != FlightState::kFailed || position->flight->failure.empty()) continue;
    if (first == nullptr || operation.ended < when) {
      first = position;
      when = operation.ended;
    }
  }
  return first;
}

Explanation stuck(const Stand& stand) {
  const std::string what = full_text(*stand.operation, stand.group);
  std::vector<int> stopped;
  for (const Position* position : stand.inside) {
    if (position->flight->process == FlightProcess::kStopped) {
      stopped.push_back(position->flight->rank);
    }
  }
  if (!stopped.empty()) {
    Stand others = stand;
    std::erase_if(others.inside,
                  [](const Position* p) { return p->flight->process == FlightProcess::kStopped; });
    return at(Verdict::kStuck, stand, stopped,
              fmt::format("{} {} stopped in {}{}", ranks_text(stopped),
                          stopped.size() == 1 ? "is" : "are", what,
                          others.inside.empty() ? "" : "; " + wait_of(others).text));
  }
  if (const Position* first = first_to_fail(stand)) {
    return at(Verdict::kFailed, stand, {first->flight->rank},
              fmt::format("rank {} failed first, in {}: {}", first->flight->rank, what,
                          words_of(*first->flight, *first->at(stand.sequence))));
  }
  if (!stand.passed.empty()) {
    return at(Verdict::kStuck, stand, ranks_of(stand.inside),
              fmt::format("{} finished {}, {} did not; {}", ranks_text(ranks_of(stand.passed)),
                          what, ranks_text(ranks_of(stand.inside)), wait_of(stand).text));
  }
  return at(Verdict::kStuck, stand, ranks_of(stand.inside),
            fmt::format("all {} ranks entered {}, and none finished it; {}", stand.inside.size(),
                        what, wait_of(stand).text));
}

}  // namespace

std::optional<Explanation> find_mismatch(const Stand& stand) {
  std::map<std::string, std::vector<int>> sides;
  for (const Position* position : stand.inside) {
    sides[agreed_text(*position->at(stand.sequence), stand.group)].push_back(
        position->flight->rank);
  }
  if (sides.size() < 2) return {};
  std::vector<std::pair<std::string, std::vector<int>>> ordered(sides.begin(), sides.end());
  std::stable_sort(ordered.begin(), ordered.end(), [](const auto& a, const auto& b) {
    return a.second.size() != b.second.size() ? a.second.size() > b.second.size()
                                              : a.second.front() < b.second.front();
  });
  std::string text = fmt::format(
      "ranks called different operations as #{} of group {}:", stand.sequence, stand.group->name);
  std::vector<int> few;
  for (std::size_t i = 0; i < ordered.size(); ++i) {
    text += fmt::format("{} {} called {}", i == 0 ? "" : ";", ranks_text(ordered[i].second),
                        ordered[i].first);
    if (i > 0) few.insert(few.end(), ordered[i].second.begin(), ordered[i].second.end());
  }
  return at(Verdict::kMismatch, stand, few, text);
}

Explanation explain_crossing(std::span<const Stand* const> circle) {
  std::string sides;
  for (const Stand* stand : circle) {
    sides +=
        fmt::format("{}{} in {}", sides.empty() ? "" : ", ", ranks_text(ranks_of(stand->inside)),
                    full_text(*stand->operation, stand->group));
  }
  return at(
      Verdict::kCrossed, *circle.front(), ranks_of(circle.front()->inside),
      fmt::format("ranks wait for each other in different groups: {}; every rank must use its "
                  "groups in the same order",
                  sides));
}

bool has_timed_out(const Stand& stand) {
  return std::any_of(stand.inside.begin(), stand.inside.end(), [&](const Position* position) {
    return position->at(stand.sequence)->error == ErrorCode::kTimeout;
  });
}

bool some_are_silent(const Stand& stand) {
  return !stand.silent.empty() && stand.silent.size() < stand.group->ranks.size();
}

Explanation explain_stand(const Stand& stand, std::span<const GroupPositions> groups) {
  if (some_are_silent(stand) && !has_timed_out(stand)) return died(stand, groups);
  if (!stand.absent.empty()) return never_entered(stand, groups);
  if (stand.without_records > 0) return undecided(stand);
  return stuck(stand);
}

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
    if (!ended_silently(flight) || flight.exit_code == 0) continue;  // no rank waits for this one
    ranks.push_back(flight.rank);
    if (!flight.operations.empty()) last = full_text(flight.operations.back(), flight, groups);
  }
  if (ranks.empty()) return {};
  // The records do not show how the ranks ended; their last output, or the launcher's, may.
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

// Whether a rank has finished a collective in any group, even in a group that has been replaced.
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
