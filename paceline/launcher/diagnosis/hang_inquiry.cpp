#include "paceline/launcher/diagnosis/hang_inquiry.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "paceline/engine/collectives/flight/explain.h"
#include "paceline/engine/collectives/flight/positions.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/engine/core/option_text.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/core/timing.h"
#include "paceline/launcher/diagnosis/failure_report.h"

namespace paceline::launcher {

namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxBytes = 384 << 10;
constexpr std::size_t kMaxUnfinished = 16;  // unfinished operations of one rank in a digest
constexpr std::size_t kLongestFailure = 300;

template <class Clock>
std::int64_t now_of() {
  return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
}

bool is_unfinished(const FlightOperation& operation) {
  return operation.state != FlightState::kDone;
}

// The operations of a digest, in the order in which they began.
std::vector<const FlightOperation*> telling_operations(const Flight& flight) {
  std::set<const FlightOperation*> chosen;
  std::size_t num_unfinished = 0;
  for (const FlightOperation& operation : flight.operations) {
    if (is_unfinished(operation) && ++num_unfinished <= kMaxUnfinished) chosen.insert(&operation);
  }
  for (const auto& group : flight::find_positions(std::span(&flight, 1))) {
    for (const flight::Position& position : group.ranks) {
      if (position.last != nullptr) chosen.insert(position.last);
    }
  }
  if (!flight.operations.empty()) chosen.insert(&flight.operations.back());
  return {chosen.begin(), chosen.end()};  // by address, which is their order in the array
}

Json to_json(const FlightOperation& operation, std::uint64_t now) {
  const auto ago = [now](std::uint64_t moment) { return now > moment ? now - moment : 0; };
  const FlightCall& call = operation.call;
  return Json::array({operation.id, call.op, call.reduce_op, static_cast<int>(call.dtype),
                      call.asynchronous, call.group, call.peer, call.tag, call.count,
                      call.group_hash, operation.sequence, static_cast<int>(operation.state),
                      operation.error ? static_cast<int>(*operation.error) : -1, operation.thread,
                      ago(operation.entered), operation.started == 0 ? -1 : 1,
                      operation.ended == 0 ? Json() : Json(ago(operation.ended))});
}

Json to_json(const Flight& flight) {
  Json json = {{"rank", flight.rank},
               {"world", flight.world_size},
               {"generation", flight.generation},
               {"pid", flight.pid},
               {"host", flight.host},
               {"end", static_cast<int>(flight.end)},
               {"failure", flight.failure.substr(0, kLongestFailure)},
               {"process", static_cast<int>(flight.process)},
               {"begun", flight.num_begun},
               {"groups", Json::array()},
               {"operations", Json::array()}};
  for (const FlightGroup& group : flight.groups) {
    json["groups"].push_back(Json::array(
        {group.number, group.hash, group.name, group.rank, group.world_size, group.generation}));
  }
  for (const FlightOperation* operation : telling_operations(flight)) {
    json["operations"].push_back(to_json(*operation, flight.now));
  }
  return json;
}

// Reads a number; Error(kCorrupt) unless it is from `least` to `most`.
template <class T>
T number_in(const Json& json, std::int64_t least, std::int64_t most) {
  const auto number = json.get<std::int64_t>();
  if (number < least || number > most) {
    fail(ErrorCode::kCorrupt,
         "a number in a digest of flight records is {}, but must be from {} to {}", number, least,
         most);
  }
  return static_cast<T>(number);
}

FlightOperation operation_of(const Json& json, std::uint64_t now, std::int64_t wall) {
  const auto moment = [&](const Json& ago) {
    return now - std::min(ago.get<std::uint64_t>(), now - 1);
  };
  FlightOperation operation;
  operation.id = json.at(0);
  operation.call = {json.at(1), json.at(2), number_in<Dtype>(json.at(3), 0, kAllDtypes.size() - 1),
                    json.at(4), json.at(5), json.at(6),
                    json.at(7), json.at(8), json.at(9)};
  operation.sequence = json.at(10);
  operation.state = number_in<FlightState>(json.at(11), 1, 4);
  const auto error = number_in<int>(json.at(12), -1, static_cast<int>(ErrorCode::kSystem));
  if (error >= 0) operation.error = static_cast<ErrorCode>(error);
  operation.thread = json.at(13);
  operation.entered = moment(json.at(14));
  if (json.at(15).get<int>() > 0) operation.started = operation.entered;
  if (!json.at(16).is_null()) operation.ended = moment(json.at(16));
  operation.entered_wall = wall - static_cast<std::int64_t>(now - operation.entered);
  return operation;
}

Flight flight_of(const Json& json, std::uint64_t now, std::int64_t wall) {
  Flight flight;
  flight.world_size = number_in<int>(json.at("world"), 1, 1 << 24);
  flight.rank = number_in<int>(json.at("rank"), 0, flight.world_size - 1);
  flight.generation = json.at("generation");
  flight.pid = json.at("pid");
  flight.host = json.at("host").get<std::string>();
  flight.end = number_in<FlightEnd>(json.at("end"), 0, 3);
  flight.failure = json.at("failure").get<std::string>();
  flight.process = number_in<FlightProcess>(json.at("process"), 0, 3);
  flight.num_begun = json.at("begun");
  flight.now = now;
  flight.boot = boot_id();  // the times refer to the clock of this boot of this machine
  for (const Json& group : json.at("groups")) {
    flight.groups.push_back(
        {group.at(0), group.at(1), group.at(2), group.at(3), group.at(4), group.at(5)});
  }
  for (const Json& operation : json.at("operations")) {
    flight.operations.push_back(operation_of(operation, now, wall));
  }
  return flight;
}

}  // namespace

std::string encode_digest(std::span<const Flight> flights) {
  std::string text = "[";
  for (const Flight& flight : flights) {
    const std::string one = json_text(to_json(flight));
    if (text.size() + one.size() + 2 > kMaxBytes) break;
    text += (text.size() > 1 ? "," : "") + one;
  }
  return text + "]";
}

std::vector<Flight> decode_digest(const std::string& text) {
  const auto now = static_cast<std::uint64_t>(now_of<std::chrono::steady_clock>());
  const std::int64_t wall = now_of<std::chrono::system_clock>();
  std::vector<Flight> flights;
  try {
    for (const Json& json : parse_json(text)) flights.push_back(flight_of(json, now, wall));
  } catch (const Json::exception& error) {
    fail(ErrorCode::kCorrupt, "a digest of flight records is not valid: {}", error.what());
  }
  return flights;
}

namespace {

using namespace std::chrono_literals;

constexpr auto kTimeToAnswer = 2s;

// Seconds since a rank last began an operation; nullopt if no rank has begun one.
std::optional<double> still_for(const std::vector<Flight>& flights) {
  std::optional<double> shortest;
  for (const Flight& flight : flights) {
    for (const FlightOperation& operation : flight.operations) {
      const double seconds = seconds_between(operation.entered, flight.now);
      shortest = std::min(shortest.value_or(seconds), seconds);
    }
  }
  return shortest;
}

// The rank that has waited longest and is not blamed itself; -1: none waits.
int longest_waiting(const std::vector<Flight>& flights, const std::vector<int>& blamed) {
  int rank = -1;
  double longest = -1;
  for (const Flight& flight : flights) {
    if (std::find(blamed.begin(), blamed.end(), flight.rank) != blamed.end()) continue;
    for (const FlightOperation& operation : flight.operations) {
      if (operation.state != FlightState::kStarted) continue;
      const double seconds = seconds_between(operation.entered, flight.now);
      if (seconds > longest) rank = flight.rank;
      longest = std::max(longest, seconds);
    }
  }
  return rank;
}

// Whether the verdict means that no rank is waiting for another rank.
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
  reported_progress_.clear();
  outbox_.clear();
}

void HangInquiry::take(Agent from, const Whereabouts& report, Moment now) {
  if (report.generation != generation_ || !hosts_.contains(from)) return;
  if (report.standstill.waiting.empty() && !report.standstill.missing.empty())
    fail(ErrorCode::kCorrupt, "a report says that ranks are missing, but no rank waits for them");
  Answer answer{decode_digest(report.digest), report.standstill, report.standstill.steps};
  for (const Flight& flight : answer.flights) answer.progress += flight.num_begun;
  if (report.round == 0 && !round_is_open_) {
    const auto said = reported_progress_.find(from);
    const bool known = said != reported_progress_.end() && said->second == answer.progress;
    if (known && decided_) return;  // this report was under way when the verdict was given
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
  if (!judgement || (!judgement->names && was_reported(progress))) return;
  reported_progress_ = std::move(progress);
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
  // If records are missing, a verdict about a message names the rank that waits for it, and that
  // rank is not to blame.
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

// Names the missing ranks that still run. If all missing ranks have ended, names the waiting ranks:
// then only the waiting ranks can be ended.
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

// Whether a hang was reported and the ranks of all agents that answered have made no progress
// since.
bool HangInquiry::was_reported(const std::map<Agent, std::uint64_t>& progress) const {
  return !reported_progress_.empty() &&
         std::all_of(progress.begin(), progress.end(), [&](const auto& entry) {
           const auto said = reported_progress_.find(entry.first);
           return said == reported_progress_.end() || said->second == entry.second;
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
