#include "paceline/engine/collectives/flight/stand_verdicts.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "paceline/engine/collectives/flight/whereabouts.h"
#include "paceline/engine/collectives/flight/words.h"

namespace paceline::flight {
namespace {

// Beyond this many, ranks are counted instead of described one by one.
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

// No rank is named: those that wait are not the reason.
Explanation undecided(const Stand& stand) {
  return at(Verdict::kUndecided, stand, {},
            fmt::format("{} did not end; {} of its {} ranks {} no records here (another machine, "
                        "or it left in order); {}",
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

Explanation explain_stand(const Stand& stand, std::span<const GroupPositions> groups) {
  // A rank that is gone after the others gave up did not make them give up: a launcher ended it.
  const bool timed_out =
      std::any_of(stand.inside.begin(), stand.inside.end(), [&](const Position* position) {
        return position->at(stand.sequence)->error == ErrorCode::kTimeout;
      });
  const bool some_are_silent =
      !stand.silent.empty() && stand.silent.size() < stand.group->ranks.size();
  if (some_are_silent && !timed_out) return died(stand, groups);
  if (!stand.absent.empty()) return never_entered(stand, groups);
  if (stand.without_records > 0) return undecided(stand);
  return stuck(stand);
}

}  // namespace paceline::flight
