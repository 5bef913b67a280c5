#include "paceline/launch/hang_inquiry.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include <fmt/format.h>

#include "paceline/collectives/flight/explain.h"
#include "paceline/launch/flight_digest.h"

namespace paceline::launch {
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

// Who has waited longest, of those that nobody is told to blame; -1: nobody waits.
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

// Nobody waits for anybody, or not any more.
bool is_calm(Verdict verdict) {
  return verdict == Verdict::kNothing || verdict == Verdict::kFinished ||
         verdict == Verdict::kStraggler;
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
  Answer answer{decode_digest(report.digest)};
  for (const Flight& flight : answer.flights) answer.num_begun += flight.num_begun;
  if (report.round == 0 && !round_is_open_) {
    const auto said = said_of_.find(from);
    const bool known = said != said_of_.end() && said->second == answer.num_begun;
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
  std::map<Agent, std::uint64_t> begun;
  for (const auto& [agent, answer] : answers_) {
    begun[agent] = answer.num_begun;
    flights.insert(flights.end(), answer.flights.begin(), answer.flights.end());
  }
  const auto still = still_for(flights);
  if (!still || *still < limit_) return;
  const Explanation found = explain(flights);
  if (is_calm(found.verdict)) return;
  // A message is waited for by the rank that is named, unless the other side is known.
  const bool whole = static_cast<int>(flights.size()) >= flights.front().world_size;
  const bool names =
      found.verdict != Verdict::kUndecided && (whole || found.verdict != Verdict::kMessage);
  if (!names && is_said_of(begun)) return;
  said_of_ = std::move(begun);
  decided_ = names;
  HangOrder order{.generation = generation_, .seconds = *still};
  order.sentence = found.sentence + silent_hosts();
  if (names) order.ranks = found.ranks;
  order.witness = longest_waiting(flights, order.ranks);
  for (const auto& [agent, host] : hosts_) outbox_.send(agent, order);
}

// Something was said, and nobody that answered has moved since.
bool HangInquiry::is_said_of(const std::map<Agent, std::uint64_t>& begun) const {
  return !said_of_.empty() && std::all_of(begun.begin(), begun.end(), [&](const auto& entry) {
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

}  // namespace paceline::launch
