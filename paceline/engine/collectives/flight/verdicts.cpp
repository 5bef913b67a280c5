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

StuckGroup stuck_group_of(const GroupPositions& group) {
  StuckGroup stuck{.group = &group, .sequence = group.stuck_at()};
  for (const Position& position : group.ranks) {
    const FlightOperation* const entered = position.at(stuck.sequence);
    if (ended_silently(*position.flight)) stuck.silent.push_back(position.flight->rank);
    if (position.has_passed(stuck.sequence)) {
      stuck.passed.push_back(&position);
    } else if (entered != nullptr) {
      stuck.inside.push_back(&position);
      if (stuck.operation == nullptr) stuck.operation = entered;
    } else {
      stuck.absent.push_back(&position);
    }
  }
  stuck.without_records = std::max(0, group.world_size - static_cast<int>(group.ranks.size()));
  return stuck;
}

Wait wait_of(const StuckGroup& stuck) {
  Wait wait;
  bool still = false;
  bool known = false;
  for (const Position* position : stuck.inside) {
    const FlightOperation& operation = *position->at(stuck.sequence);
    still |= operation.ended == 0 && is_running(*position->flight);
    if (const auto seconds = waited(*position->flight, operation)) {
      known = true;
      wait.seconds = std::max(wait.seconds, *seconds);
    }
  }
  const std::string who = ranks_text(ranks_of(stuck.inside));
  if (!known) {
    wait.text = fmt::format("{} waited for it until the end", who);
  } else if (still) {
    wait.text = fmt::format("{} {} been waiting for {}", who,
                            stuck.inside.size() == 1 ? "has" : "have", seconds_text(wait.seconds));
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

Explanation at(Verdict verdict, const StuckGroup& stuck, std::vector<int> ranks,
               std::string sentence) {
  return {verdict,           std::move(sentence), std::move(ranks),
          stuck.group->name, stuck.sequence,      wait_of(stuck).seconds};
}

Explanation died(const StuckGroup& stuck, std::span<const GroupPositions> groups) {
  std::string text;
  for (const Position& position : stuck.group->ranks) {
    const Flight& flight = *position.flight;
    if (!ended_silently(flight)) continue;
    if (!text.empty()) text += "; ";
    const std::string who =
        fmt::format("rank {} (pid {} on {})", flight.rank, flight.pid, flight.host);
    const auto* const elsewhere = unfinished_elsewhere(position);
    const std::string how =
        flight.exit_code ? fmt::format("ended with exit code {}", *flight.exit_code) : "died";
    if (position.open != nullptr) {
      text += fmt::format("{} {} in {}", who, how, full_text(*position.open, stuck.group));
    } else if (elsewhere != nullptr) {
      text += fmt::format("{} {} in {}", who, how, full_text(*elsewhere, flight, groups));
    } else {
      text += fmt::format("{} {} outside of any operation", who, how);
    }
    text += "; " + last_finished("it", position);
  }
  StuckGroup others = stuck;
  std::erase_if(others.inside, [](const Position* p) { return ended_silently(*p->flight); });
  if (!others.inside.empty()) {
    text += fmt::format("; {} in {}", wait_of(others).text, short_text(*stuck.operation));
  }
  return at(Verdict::kDied, others, stuck.silent, text);
}

Explanation never_entered(const StuckGroup& stuck, std::span<const GroupPositions> groups) {
  const auto ranks = ranks_of(stuck.absent);
  std::string text = fmt::format("{} never entered {}", ranks_text(ranks),
                                 full_text(*stuck.operation, stuck.group));
  for (std::size_t i = 0; i < stuck.absent.size() && i < kDescribed; ++i) {
    const Position& position = *stuck.absent[i];
    const std::string who =
        ranks.size() == 1 ? "it" : fmt::format("rank {}", position.flight->rank);
    text += "; " + last_finished(who, position) + whereabouts(position, groups);
  }
  return at(Verdict::kNeverEntered, stuck, ranks, text + "; " + wait_of(stuck).text);
}

// This verdict names no rank, because the waiting ranks are not the cause.
Explanation undecided(const StuckGroup& stuck) {
  return at(Verdict::kUndecided, stuck, {},
            fmt::format("{} did not end; {} of its {} ranks {} no records here (on another "
                        "machine, or left in order); {}",
                        full_text(*stuck.operation, stuck.group), stuck.without_records,
                        stuck.group->world_size, stuck.without_records == 1 ? "has" : "have",
                        wait_of(stuck).text));
}

const Position* first_to_fail(const StuckGroup& stuck) {
  const Position* first = nullptr;
  std::uint64_t when = 0;
  for (const Position* position : stuck.inside) {
    const FlightOperation& operation = *position->at(stuck.sequence);
    if (operation.state != FlightState::kFailed || position->flight->failure.empty()) continue;
    if (first == nullptr || operation.ended < when) {
      first = position;
      when = operation.ended;
    }
  }
  return first;
}

Explanation explain_stuck(const StuckGroup& stuck) {
  const std::string what = full_text(*stuck.operation, stuck.group);
  std::vector<int> stopped;
  for (const Position* position : stuck.inside) {
    if (position->flight->process == FlightProcess::kStopped) {
      stopped.push_back(position->flight->rank);
    }
  }
  if (!stopped.empty()) {
    StuckGroup others = stuck;
    std::erase_if(others.inside,
                  [](const Position* p) { return p->flight->process == FlightProcess::kStopped; });
    return at(Verdict::kStuck, stuck, stopped,
              fmt::format("{} {} stopped in {}{}", ranks_text(stopped),
                          stopped.size() == 1 ? "is" : "are", what,
                          others.inside.empty() ? "" : "; " + wait_of(others).text));
  }
  if (const Position* first = first_to_fail(stuck)) {
    return at(Verdict::kFailed, stuck, {first->flight->rank},
              fmt::format("rank {} failed first, in {}: {}", first->flight->rank, what,
                          words_of(*first->flight, *first->at(stuck.sequence))));
  }
  if (!stuck.passed.empty()) {
    return at(Verdict::kStuck, stuck, ranks_of(stuck.inside),
              fmt::format("{} finished {}, {} did not; {}", ranks_text(ranks_of(stuck.passed)),
                          what, ranks_text(ranks_of(stuck.inside)), wait_of(stuck).text));
  }
  return at(Verdict::kStuck, stuck, ranks_of(stuck.inside),
            fmt::format("all {} ranks entered {}, and none finished it; {}", stuck.inside.size(),
                        what, wait_of(stuck).text));
}

}  // namespace

std::optional<Explanation> find_mismatch(const StuckGroup& stuck) {
  std::map<std::string, std::vector<int>> sides;
  for (const Position* position : stuck.inside) {
    sides[agreed_text(*position->at(stuck.sequence), stuck.group)].push_back(
        position->flight->rank);
  }
  if (sides.size() < 2) return {};
  std::vector<std::pair<std::string, std::vector<int>>> ordered(sides.begin(), sides.end());
  std::stable_sort(ordered.begin(), ordered.end(), [](const auto& a, const auto& b) {
    return a.second.size() != b.second.size() ? a.second.size() > b.second.size()
                                              : a.second.front() < b.second.front();
  });
  std::string text = fmt::format(
      "ranks called different operations as #{} of group {}:", stuck.sequence, stuck.group->name);
  std::vector<int> few;
  for (std::size_t i = 0; i < ordered.size(); ++i) {
    text += fmt::format("{} {} called {}", i == 0 ? "" : ";", ranks_text(ordered[i].second),
                        ordered[i].first);
    if (i > 0) few.insert(few.end(), ordered[i].second.begin(), ordered[i].second.end());
  }
  return at(Verdict::kMismatch, stuck, few, text);
}

Explanation explain_crossing(std::span<const StuckGroup* const> circle) {
  std::string sides;
  for (const StuckGroup* stuck : circle) {
    sides +=
        fmt::format("{}{} in {}", sides.empty() ? "" : ", ", ranks_text(ranks_of(stuck->inside)),
                    full_text(*stuck->operation, stuck->group));
  }
  return at(
      Verdict::kCrossed, *circle.front(), ranks_of(circle.front()->inside),
      fmt::format("ranks wait for each other in different groups: {}; every rank must use its "
                  "groups in the same order",
                  sides));
}

bool has_timed_out(const StuckGroup& stuck) {
  return std::any_of(stuck.inside.begin(), stuck.inside.end(), [&](const Position* position) {
    return position->at(stuck.sequence)->error == ErrorCode::kTimeout;
  });
}

bool some_are_silent(const StuckGroup& stuck) {
  return !stuck.silent.empty() && stuck.silent.size() < stuck.group->ranks.size();
}

Explanation explain_stuck_group(const StuckGroup& stuck, std::span<const GroupPositions> groups) {
  if (some_are_silent(stuck) && !has_timed_out(stuck)) return died(stuck, groups);
  if (!stuck.absent.empty()) return never_entered(stuck, groups);
  if (stuck.without_records > 0) return undecided(stuck);
  return explain_stuck(stuck);
}

std::optional<Explanation> find_unmatched_message(std::span<const Flight> flights,
                                                  std::span<const GroupPositions> groups,
                                                  Failures failures) {
  const Flight* who = nullptr;
  const FlightOperation* what = nullptr;
  for (const Flight& flight : flights) {
    for (const auto& operation : flight.operations) {
      if (operation.state == FlightState::kDone || !is_message(operation)) continue;
      if (failures == Failures::kFinal && has_continued_after(flight, operation)) continue;
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
    // A rank that exited with code 0 keeps no other rank waiting.
    if (!ended_silently(flight) || flight.exit_code == 0) continue;
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

std::optional<Explanation> find_own_error(std::span<const Flight> flights) {
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

// Whether any rank has finished a collective in any group, even in a group that has been replaced.
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
