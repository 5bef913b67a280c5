#include "paceline/collectives/flight/explain.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "paceline/collectives/flight/positions.h"
#include "paceline/collectives/flight/straggler.h"
#include "paceline/collectives/flight/words.h"

namespace paceline {
namespace {

using flight::full_text;
using flight::GroupPositions;
using flight::Position;
using flight::ranks_text;
using flight::seconds_text;
using flight::short_text;

// Beyond this many, ranks are counted instead of described one by one.
constexpr std::size_t kDescribed = 3;

std::vector<int> numbers_of(const std::vector<const Position*>& positions) {
  std::vector<int> ranks;
  for (const Position* position : positions) ranks.push_back(position->flight->rank);
  return ranks;
}

// The members of a group, by what they did with the operation where it stands.
struct Stand {
  const GroupPositions* group = nullptr;
  std::uint32_t sequence = 0;
  const FlightOperation* operation = nullptr;  // one of those that stand for it
  std::vector<const Position*> inside;         // not finished
  std::vector<const Position*> passed;         // finished
  std::vector<const Position*> absent;         // never entered
  std::vector<int> silent;                     // ended without a word, wherever they were
  int without_records = 0;
};

Stand stand_of(const GroupPositions& group) {
  Stand stand{.group = &group, .sequence = group.stands_at()};
  for (const Position& position : group.ranks) {
    const FlightOperation* const entered = position.at(stand.sequence);
    if (flight::ended_silently(*position.flight)) stand.silent.push_back(position.flight->rank);
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

bool is_running(const Flight& flight) {
  return flight.process == FlightProcess::kRunning || flight.process == FlightProcess::kStopped;
}

// The longest wait inside; and the words for it, ", ranks 0-2 wait since 31.2 s".
struct Wait {
  double seconds = 0;
  std::string text;
};

Wait wait_of(const Stand& stand) {
  Wait wait;
  bool still = false;
  bool known = false;
  for (const Position* position : stand.inside) {
    const FlightOperation& operation = *position->at(stand.sequence);
    still |= operation.ended == 0 && is_running(*position->flight);
    if (const auto seconds = flight::waited(*position->flight, operation)) {
      known = true;
      wait.seconds = std::max(wait.seconds, *seconds);
    }
  }
  const std::string who = ranks_text(numbers_of(stand.inside));
  const std::string it = stand.inside.size() == 1 ? "s" : "";
  if (!known) {
    wait.text = fmt::format("{} waited for it until the end", who);
  } else if (still) {
    wait.text = fmt::format("{} wait{} since {}", who, it, seconds_text(wait.seconds));
  } else {
    wait.text = fmt::format("{} waited {}", who, seconds_text(wait.seconds));
  }
  return wait;
}

// Where a rank is that is not where others wait for it: what it does, or how it ended.
const FlightOperation* unfinished_elsewhere(const Position& position) {
  for (const auto& operation : position.flight->operations) {
    const bool of_this_group = operation.call.group == position.number;
    if (of_this_group && !flight::is_message(operation)) continue;
    // What was posted ahead is not what the rank waits in.
    if (flight::is_message(operation) && operation.call.asynchronous) continue;
    if (operation.state == FlightState::kStarted || operation.state == FlightState::kFailed) {
      return &operation;
    }
  }
  return nullptr;
}

class Analysis {
 public:
  explicit Analysis(std::span<const Flight> flights)
      : flights_(flights), groups_(flight::find_positions(flights)) {}

  Explanation run() {
    if (auto found = where_it_stands()) return *found;
    if (auto found = lonely_message()) return *found;
    if (auto found = silent_ends()) return *found;
    if (auto found = own_words()) return *found;
    return nobody_waits();
  }

 private:
  const GroupPositions* group_of(const Flight& flight, std::uint32_t number) const {
    for (const auto& group : groups_) {
      for (const auto& position : group.ranks) {
        if (position.flight == &flight && position.number == number) return &group;
      }
    }
    return nullptr;
  }

  std::string words_for(const Flight& flight, const FlightOperation& operation) const {
    return full_text(operation, group_of(flight, operation.call.group));
  }

  Explanation at(Verdict verdict, const Stand& stand, std::vector<int> ranks,
                 std::string sentence) const {
    return {verdict,           std::move(sentence), std::move(ranks),
            stand.group->name, stand.sequence,      wait_of(stand).seconds};
  }

  // ---- a collective that did not end

  // The stand that explains the others: from the oldest on, after whoever is missing there.
  std::optional<Explanation> where_it_stands() const {
    std::vector<Stand> stands;
    for (const auto& group : groups_) {
      if (group.stands_at() > 0) stands.push_back(stand_of(group));
    }
    if (stands.empty()) return {};
    for (const Stand& stand : stands) {
      if (auto found = mismatch(stand)) return found;
    }
    const auto oldest = [](const Stand& stand) {
      std::int64_t first = stand.operation->entered_wall;
      for (const Position* position : stand.inside) {
        first = std::min(first, position->at(stand.sequence)->entered_wall);
      }
      return first;
    };
    std::sort(stands.begin(), stands.end(),
              [&](const Stand& a, const Stand& b) { return oldest(a) < oldest(b); });
    std::vector<const Stand*> way{&stands.front()};
    for (;;) {
      const Stand* next = stand_that_holds(*way.back(), stands);
      if (next == nullptr) return explain(*way.back());
      if (std::find(way.begin(), way.end(), next) != way.end()) return crossed(*next, *way.back());
      way.push_back(next);
    }
  }

  // Another stand inside which somebody is who is missing here.
  static const Stand* stand_that_holds(const Stand& here, const std::vector<Stand>& stands) {
    for (const Position* missing : here.absent) {
      for (const Stand& other : stands) {
        for (const Position* inside : other.inside) {
          if (&other != &here && inside->flight == missing->flight) return &other;
        }
      }
    }
    return nullptr;
  }

  std::optional<Explanation> mismatch(const Stand& stand) const {
    std::map<std::string, std::vector<int>> sides;
    for (const Position* position : stand.inside) {
      sides[flight::agreed_text(*position->at(stand.sequence))].push_back(position->flight->rank);
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

  Explanation crossed(const Stand& a, const Stand& b) const {
    const auto side = [](const Stand& stand) {
      return fmt::format("{} in {}", ranks_text(numbers_of(stand.inside)),
                         full_text(*stand.operation, stand.group));
    };
    return at(Verdict::kCrossed, a, numbers_of(a.inside),
              fmt::format("ranks wait for each other in different groups: {}, {}; every rank must "
                          "use its groups in the same order",
                          side(a), side(b)));
  }

  Explanation explain(const Stand& stand) const {
    // A rank that is gone after the others gave up did not make them give up: a launcher ended it.
    const bool timed_out =
        std::any_of(stand.inside.begin(), stand.inside.end(), [&](const Position* position) {
          return position->at(stand.sequence)->error == ErrorCode::kTimeout;
        });
    const bool some_are_silent =
        !stand.silent.empty() && stand.silent.size() < stand.group->ranks.size();
    if (some_are_silent && !timed_out) return died(stand);
    if (!stand.absent.empty()) return never_entered(stand);
    if (stand.without_records > 0) return undecided(stand);
    return stuck(stand);
  }

  Explanation died(const Stand& stand) const {
    std::string text;
    for (const Position& position : stand.group->ranks) {
      const Flight& flight = *position.flight;
      if (!flight::ended_silently(flight)) continue;
      if (!text.empty()) text += "; ";
      const std::string who =
          fmt::format("rank {} (pid {} on {})", flight.rank, flight.pid, flight.host);
      const auto* const elsewhere = unfinished_elsewhere(position);
      const std::string how =
          flight.exit_code ? fmt::format("ended with exit code {}", *flight.exit_code) : "died";
      if (position.open != nullptr) {
        text += fmt::format("{} {} in {}", who, how, full_text(*position.open, stand.group));
      } else if (elsewhere != nullptr) {
        text += fmt::format("{} {} in {}", who, how, words_for(flight, *elsewhere));
      } else {
        text += fmt::format("{} {} outside of any operation", who, how);
      }
      text += "; " + last_finished("it", position);
    }
    Stand others = stand;
    std::erase_if(others.inside,
                  [](const Position* p) { return flight::ended_silently(*p->flight); });
    if (!others.inside.empty()) {
      text += fmt::format("; {} in {}", wait_of(others).text, short_text(*stand.operation));
    }
    return at(Verdict::kDied, others, stand.silent, text);
  }

  static std::string last_finished(const std::string& who, const Position& position) {
    return position.last == nullptr
               ? fmt::format("{} had finished nothing before", who)
               : fmt::format("{} last finished {}", who, short_text(*position.last));
  }

  Explanation never_entered(const Stand& stand) const {
    const auto ranks = numbers_of(stand.absent);
    std::string text = fmt::format("{} never entered {}", ranks_text(ranks),
                                   full_text(*stand.operation, stand.group));
    for (std::size_t i = 0; i < stand.absent.size() && i < kDescribed; ++i) {
      const Position& position = *stand.absent[i];
      const std::string who =
          ranks.size() == 1 ? "it" : fmt::format("rank {}", position.flight->rank);
      text += "; " + last_finished(who, position) + whereabouts(position);
    }
    return at(Verdict::kNeverEntered, stand, ranks, text + "; " + wait_of(stand).text);
  }

  // " and is in recv (...) since 2.0 s"; empty when there is nothing to tell.
  std::string whereabouts(const Position& position) const {
    const Flight& flight = *position.flight;
    if (const auto* const operation = unfinished_elsewhere(position)) {
      const auto seconds = flight::waited(flight, *operation);
      const bool is_there = operation->ended == 0 && is_running(flight);
      return fmt::format(" and {} in {}{}", is_there ? "is" : "was", words_for(flight, *operation),
                         seconds ? (is_there ? " since " : " for ") + seconds_text(*seconds) : "");
    }
    if (flight.process == FlightProcess::kStopped) return " and is stopped";
    if (!flight.failure.empty()) return fmt::format(" and failed: {}", flight.failure);
    if (flight.end == FlightEnd::kException) return " and left by an exception";
    if (flight.end == FlightEnd::kInOrder) return " and left in order";
    if (flight.process == FlightProcess::kGone) return " and its process is gone";
    return "";
  }

  // Nobody is named: those who wait are not the reason.
  Explanation undecided(const Stand& stand) const {
    return at(Verdict::kUndecided, stand, {},
              fmt::format("{} did not end; {} of its {} ranks {} no records here (another machine, "
                          "or it left in order); {}",
                          full_text(*stand.operation, stand.group), stand.without_records,
                          stand.group->world_size, stand.without_records == 1 ? "has" : "have",
                          wait_of(stand).text));
  }

  Explanation stuck(const Stand& stand) const {
    const std::string what = full_text(*stand.operation, stand.group);
    std::vector<int> stopped;
    for (const Position* position : stand.inside) {
      if (position->flight->process == FlightProcess::kStopped) {
        stopped.push_back(position->flight->rank);
      }
    }
    if (!stopped.empty()) {
      Stand others = stand;
      std::erase_if(others.inside, [](const Position* p) {
        return p->flight->process == FlightProcess::kStopped;
      });
      return at(Verdict::kStuck, stand, stopped,
                fmt::format("{} {} stopped in {}{}", ranks_text(stopped),
                            stopped.size() == 1 ? "is" : "are", what,
                            others.inside.empty() ? "" : "; " + wait_of(others).text));
    }
    if (const Position* first = first_to_fail(stand)) {
      return at(Verdict::kFailed, stand, {first->flight->rank},
                fmt::format("rank {} failed first, in {}: {}", first->flight->rank, what,
                            first->flight->failure));
    }
    if (!stand.passed.empty()) {
      return at(Verdict::kStuck, stand, numbers_of(stand.inside),
                fmt::format("{} finished {}, {} did not; {}", ranks_text(numbers_of(stand.passed)),
                            what, ranks_text(numbers_of(stand.inside)), wait_of(stand).text));
    }
    return at(Verdict::kStuck, stand, numbers_of(stand.inside),
              fmt::format("all {} ranks entered {}, and none finished it; {}", stand.inside.size(),
                          what, wait_of(stand).text));
  }

  static const Position* first_to_fail(const Stand& stand) {
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

  // ---- no collective is under way

  std::optional<Explanation> lonely_message() const {
    const Flight* who = nullptr;
    const FlightOperation* what = nullptr;
    for (const Flight& flight : flights_) {
      for (const auto& operation : flight.operations) {
        if (operation.state == FlightState::kDone || !flight::is_message(operation)) continue;
        if (what != nullptr && what->entered_wall <= operation.entered_wall) continue;
        who = &flight;
        what = &operation;
      }
    }
    if (what == nullptr) return {};
    const GroupPositions* const group = group_of(*who, what->call.group);
    const auto seconds = flight::waited(*who, *what);
    Explanation found{.verdict = Verdict::kMessage, .ranks = {who->rank}};
    found.waited_seconds = seconds.value_or(0);
    if (what->state == FlightState::kFailed) {
      found.sentence = fmt::format("rank {} failed in {}{}: {}", who->rank, full_text(*what, group),
                                   seconds ? " after " + seconds_text(*seconds) : "", who->failure);
    } else {
      found.sentence = fmt::format("rank {} waits in {}{}", who->rank, full_text(*what, group),
                                   seconds ? " since " + seconds_text(*seconds) : "");
    }
    if (group != nullptr) {
      found.group = group->name;
      for (const Position& position : group->ranks) {
        if (position.group_rank != what->call.peer) continue;
        found.sentence += fmt::format(
            "; {}{}", last_finished(fmt::format("rank {}", position.flight->rank), position),
            whereabouts(position));
      }
    }
    return found;
  }

  std::optional<Explanation> silent_ends() const {
    std::vector<int> ranks;
    std::string last;
    for (const Flight& flight : flights_) {
      if (!flight::ended_silently(flight) || flight.exit_code == 0)
        continue;  // nobody waits for it
      ranks.push_back(flight.rank);
      if (!flight.operations.empty()) last = words_for(flight, flight.operations.back());
    }
    if (ranks.empty()) return {};
    // How they ended is not in the records: what they wrote last, or the launcher, may say it.
    const std::string text =
        last.empty()
            ? fmt::format("{} ended before the first operation", ranks_text(ranks))
            : fmt::format("{} ended outside of any operation, after {}", ranks_text(ranks), last);
    return Explanation{.verdict = Verdict::kDied, .sentence = text, .ranks = ranks};
  }

  // Of the rank whose process has failed, when that is known.
  std::optional<Explanation> own_words() const {
    const Flight* who = nullptr;
    for (const Flight& flight : flights_) {
      if (flight.failure.empty() && flight.end != FlightEnd::kException) continue;
      const bool has_failed = flight.exit_code.value_or(0) != 0;
      if (who == nullptr || (has_failed && who->exit_code.value_or(0) == 0)) who = &flight;
    }
    if (who == nullptr) return {};
    const std::string why = who->failure.empty() ? "it left by an exception" : who->failure;
    return Explanation{
        .verdict = Verdict::kFailed,
        .sentence = fmt::format("rank {} failed outside of any operation: {}", who->rank, why),
        .ranks = {who->rank}};
  }

  Explanation nobody_waits() const {
    const GroupPositions* widest = nullptr;
    for (const auto& group : groups_) {
      const bool has_any = std::any_of(group.ranks.begin(), group.ranks.end(),
                                       [](const Position& p) { return p.last != nullptr; });
      if (has_any && (widest == nullptr || group.ranks.size() > widest->ranks.size())) {
        widest = &group;
      }
    }
    if (widest == nullptr) {
      return {.verdict = Verdict::kNothing, .sentence = "no rank finished a collective"};
    }
    std::map<std::uint32_t, std::vector<int>> by_last;
    const FlightOperation* last = nullptr;
    for (const Position& position : widest->ranks) {
      by_last[position.last == nullptr ? 0 : position.last->sequence].push_back(
          position.flight->rank);
      if (position.last != nullptr &&
          (last == nullptr || position.last->sequence > last->sequence)) {
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
      found.sentence = fmt::format("nobody waits in a collective of group {};", widest->name);
      for (const auto& [sequence, ranks] : by_last) {
        found.sentence +=
            fmt::format("{} {} last finished #{}", found.sentence.ends_with(";") ? "" : ",",
                        ranks_text(ranks), sequence);
      }
    }
    if (const auto straggler = flight::find_straggler(*widest)) {
      found.verdict = Verdict::kStraggler;
      found.ranks = {straggler->rank};
      found.waited_seconds = straggler->waited_seconds;
      found.sentence += fmt::format(
          "; rank {} came last to {} of {} and kept the others waiting {} of {}", straggler->rank,
          straggler->times_last, straggler->num_operations, seconds_text(straggler->waited_seconds),
          seconds_text(straggler->span_seconds));
    }
    return found;
  }

  const std::span<const Flight> flights_;
  const std::vector<GroupPositions> groups_;
};

std::string_view process_text(const Flight& flight) {
  if (flight.end == FlightEnd::kInOrder) return "left in order";
  if (flight.end == FlightEnd::kFailed) return "left after a failure";
  if (flight.end == FlightEnd::kException) return "left by an exception";
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

Explanation explain(std::span<const Flight> flights) { return Analysis(flights).run(); }

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
  text += last == nullptr ? " finished nothing" : " last finished " + full_text(*last, nullptr);
  if (open != nullptr) {
    text += fmt::format(", then {} {}", open->state == FlightState::kFailed ? "failed in" : "is in",
                        full_text(*open, nullptr));
  }
  if (flight.num_torn > 0) text += fmt::format(", {} records torn", flight.num_torn);
  return text;
}

}  // namespace paceline
