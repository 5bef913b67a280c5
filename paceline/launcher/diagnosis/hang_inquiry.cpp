#include "paceline/launcher/diagnosis/hang_inquiry.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "paceline/engine/collectives/flight/explain.h"
#include "paceline/launcher/diagnosis/failure_report.h"
#include "paceline/launcher/diagnosis/flight_digest.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;

constexpr auto kTimeToAnswer = 2s;

double seconds_since(const Flight& flight, std::uint64_t moment) {
  return flight.now > moment ? static_cast<double>(flight.now - moment) * 1e-9 : 0;
}

// Since any rank began anything; nothing when none did.
std::optional<double> still_for(const std::vector<Flight>& flights) {
  std::optional<double> shortest;
  for (const Flight& flight : flights) {
    for (const FlightOperation& operation : flight.operations) {
      const double seconds = seconds_since(flight, operation.entered);
      shortest = std::min(shortest.value_or(seconds), seconds);
    }
  }
  return shortest;
}

// The rank that has waited longest, of those that are not to be blamed; -1: none waits.
int longest_waiting(const std::vector<Flight>& flights, const std::vector<int>& blamed) {
  int rank = -1;
  double longest = -1;
  for (const Flight& flight : flights) {
    if (std::find(blamed.begin(), blamed.end(), flight.rank) != blamed.end()) continue;
    for (const FlightOperation& operation : flight.operations) {
      if (operation.state != FlightState::kStarted) continue;
      const double seconds = seconds_since(flight, operation.entered);
      if (seconds > longest) rank = flight.rank;
      longest = std::max(longest, seconds);
    }
  }
  return rank;
}

// No rank waits for another, or not any more.
bool is_calm(Verdict verdict) {
  return verdict == Verdict::kNothing || verdict == Verdict::kFinished ||
         verdict == Verdict::kStraggler;
}

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", format_ranks(ranks));
}

}  // namespace

std::string hang_text(const HangOrder& hang) {
  if (hang.sentence.empty()) return "";
  return fmt::format("paceline: no progress for {:.1f} s: {}\n", hang.seconds, hang.sentence);
}

void HangInquiry::begin(int generation, std::map<Agent, std::string> agents) {
  generation_ = generation;
  hosts_ = std::move(agents);
  round_is_open_ = decided_ = false;
  said_of_.clear();
  outbox_.clear();
}

void HangInquiry::take(Agent from, const Whereabouts& report, Moment now) {
  if (report.generation != generation_ || !hosts_.contains(from)) return;
  Answer answer{decode_digest(report.digest), report.standstill, report.standstill.steps};
  for (const Flight& flight : answer.flights) answer.progress += flight.num_begun;
  if (report.round == 0 && !round_is_open_) {
    const auto said = said_of_.find(from);
    const bool known = said != said_of_.end() && said->second == answer.progress;
    if (known && decided_) return;  // it was on its way when that was said
    open(from, report.limit, now);
  } else if (!round_is_open_ || (report.round != 0 && report.round != round_)) {
    return;
  }
  answers_[from] = std::move(answer);
  judge_if_complete();
}

void HangInquiry::open(Agent from, double limit, Moment now) {
  round_is_open_ = true;
  ++round_;
  limit_ = limit;
  until_ = now + kTimeToAnswer;
  answers_.clear();
  for (const auto& [agent, host] : hosts_) {
    if (agent != from) outbox_.send(agent, LookOrder{round_});
  }
}

void HangInquiry::lose(Agent agent) {
  hosts_.erase(agent);
  answers_.erase(agent);
  if (round_is_open_) judge_if_complete();
}

void HangInquiry::tick(Moment now) {
  if (round_is_open_ && now >= until_) judge();
}

void HangInquiry::judge_if_complete() {
  if (answers_.size() == hosts_.size()) judge();
}

void HangInquiry::judge() {
  round_is_open_ = false;
  std::vector<Flight> flights;
  std::map<Agent, std::uint64_t> progress;
  for (const auto& [agent, answer] : answers_) {
    progress[agent] = answer.progress;
    flights.insert(flights.end(), answer.flights.begin(), answer.flights.end());
  }
  auto judgement = judge_records(flights);
  if (!judgement) judgement = judge_signs();
  if (!judgement || (!judgement->names && is_said_of(progress))) return;
  said_of_ = std::move(progress);
  decided_ = judgement->names;
  HangOrder& order = judgement->order;
  order.generation = generation_;
  order.sentence += silent_hosts();
  for (const auto& [agent, host] : hosts_) outbox_.send(agent, order);
}

std::optional<HangInquiry::Judgement> HangInquiry::judge_records(
    const std::vector<Flight>& flights) const {
  const auto still = still_for(flights);
  if (!still || *still < limit_) return {};
  const Explanation found = explain(flights);
  if (is_calm(found.verdict)) return {};
  // A message is waited for by the rank that is named, unless the other side is known.
  const bool whole = static_cast<int>(flights.size()) >= flights.front().world_size;
  const bool names =
      found.verdict != Verdict::kUndecided && (whole || found.verdict != Verdict::kMessage);
  HangOrder order{.seconds = *still, .sentence = found.sentence};
  if (names) order.ranks = found.ranks;
  order.witness = longest_waiting(flights, order.ranks);
  return Judgement{order, names};
}

Standstill HangInquiry::signs_of_all() const {
  const auto add = [](std::vector<int>& all, const std::vector<int>& more) {
    all.insert(all.end(), more.begin(), more.end());
  };
  Standstill all{.seconds = std::numeric_limits<double>::infinity(),
                 .idle = answers_.size() == hosts_.size()};
  for (const auto& [agent, answer] : answers_) {
    const Standstill& one = answer.standstill;
    all.seconds = std::min(all.seconds, one.seconds);
    all.steps += one.steps;
    all.idle = all.idle && one.idle;
    add(all.running, one.running);
    add(all.stopped, one.stopped);
    add(all.waiting, one.waiting);
    add(all.missing, one.missing);
  }
  return all;
}

std::optional<HangInquiry::Judgement> HangInquiry::judge_signs() const {
  const Standstill signs = signs_of_all();
  if (answers_.empty() || signs.seconds < limit_) return {};
  std::optional<Judgement> judgement;
  if (!signs.missing.empty()) {
    judgement = missing_in_meeting(signs);
  } else if (!signs.stopped.empty()) {
    const bool one = signs.stopped.size() == 1;
    judgement.emplace();
    judgement->order.ranks = signs.stopped;
    judgement->order.sentence =
        fmt::format("{} {} stopped (SIGSTOP, or at a terminal); SIGCONT lets {} go on",
                    ranks_text(signs.stopped), one ? "is" : "are", one ? "it" : "them");
  } else if (signs.idle && signs.steps > 0) {
    judgement = idle_ranks(signs);
  }
  if (!judgement) return {};
  judgement->names = !judgement->order.ranks.empty();
  judgement->order.seconds = signs.seconds;
  return judgement;
}

// Where those that are missing have ended, only the others can be ended.
HangInquiry::Judgement HangInquiry::missing_in_meeting(const Standstill& signs) const {
  Judgement judgement;
  HangOrder& order = judgement.order;
  for (const int rank : signs.missing) {
    if (std::find(signs.running.begin(), signs.running.end(), rank) != signs.running.end()) {
      order.ranks.push_back(rank);
    }
  }
  const bool one = signs.missing.size() == 1;
  const bool all_answered = answers_.size() == hosts_.size();
  const bool ended = order.ranks.empty() && all_answered;
  order.sentence = fmt::format("{} {} not arrived at init_process_group(){}; {} {} waiting there",
                               ranks_text(signs.missing), one ? "has" : "have",
                               ended ? fmt::format(" and {} ended", one ? "has" : "have") : "",
                               ranks_text(signs.waiting), signs.waiting.size() == 1 ? "is" : "are");
  if (ended) order.ranks = signs.waiting;
  order.witness = signs.waiting.front();
  return judgement;
}

HangInquiry::Judgement HangInquiry::idle_ranks(const Standstill& signs) const {
  const bool one = signs.running.size() == 1;
  Judgement judgement;
  judgement.order.ranks = signs.running;
  judgement.order.sentence = fmt::format(
      "{} {} idle outside of any operation: steps have stopped, and {}", ranks_text(signs.running),
      one ? "is" : "are", one ? "it does not compute" : "none of them computes");
  return judgement;
}

// A report was made, and no rank that answered has moved since.
bool HangInquiry::is_said_of(const std::map<Agent, std::uint64_t>& progress) const {
  return !said_of_.empty() && std::all_of(progress.begin(), progress.end(), [&](const auto& entry) {
    const auto said = said_of_.find(entry.first);
    return said == said_of_.end() || said->second == entry.second;
  });
}

std::string HangInquiry::silent_hosts() const {
  std::string text;
  for (const auto& [agent, host] : hosts_) {
    if (!answers_.contains(agent)) text += (text.empty() ? "" : ", ") + host;
  }
  if (text.empty()) return text;
  return fmt::format("; the launcher on {} did not answer within {} s", text,
                     kTimeToAnswer.count());
}

}  // namespace paceline::launcher
