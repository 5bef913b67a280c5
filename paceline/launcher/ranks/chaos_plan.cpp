#include "paceline/launcher/ranks/chaos_plan.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <sstream>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/option_text.h"

namespace paceline::launcher {
namespace {

constexpr double kStopSeconds = 5;
constexpr double kShortest = 1e-3, kLongest = 1e7;

constexpr const char* kForm = "KIND[:rank=N][:rate=1/15s|:every=15s][:for=5s][@30s|@step50]";

double seconds_of(std::string text, const std::string& item) {
  if (text.ends_with('s')) text.pop_back();
  const auto value = parse_number<double>(text, kShortest, kLongest);
  check(value.has_value(),
        "--chaos: '{}': '{}' is not a number of seconds from 0.001 to 1e7; a fault is {}", item,
        text, kForm);
  return *value;
}

std::uint64_t number_of(const std::string& text, const std::string& item) {
  const auto value = parse_number<std::uint64_t>(text, 0, 1'000'000'000);
  check(value.has_value(), "--chaos: '{}': '{}' is not a whole number; a fault is {}", item, text,
        kForm);
  return *value;
}

// "1/15s" is one fault in 15 s; "4/60s" is four faults in a minute.
double mean_seconds_of(const std::string& rate, const std::string& item) {
  const auto slash = rate.find('/');
  check(slash != std::string::npos, "--chaos: '{}': a rate has the form 1/15s", item);
  const auto count = static_cast<double>(number_of(rate.substr(0, slash), item));
  const double seconds = seconds_of(rate.substr(slash + 1), item);
  check(count > 0 && seconds / count >= kShortest,
        "--chaos: '{}': a rate must be at least 1 fault, and at most one per millisecond", item);
  return seconds / count;
}

FaultKind kind_of(const std::string& name, const std::string& item) {
  if (name == "kill") return FaultKind::kKill;
  if (name == "stop") return FaultKind::kStop;
  if (name == "slow") return FaultKind::kSlow;
  fail(ErrorCode::kInvalid, "--chaos: '{}': '{}' is not kill, stop or slow; a fault is {}", item,
       name, kForm);
}

void set_property(Fault& fault, const std::string& property, const std::string& item) {
  const auto equals = property.find('=');
  const std::string name = property.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : property.substr(equals + 1);
  if (name == "rank") {
    fault.rank = static_cast<int>(number_of(value, item));
  } else if (name == "rate") {
    fault.mean_seconds = mean_seconds_of(value, item);
  } else if (name == "every") {
    fault.every_seconds = seconds_of(value, item);
  } else if (name == "for") {
    fault.for_seconds = seconds_of(value, item);
  } else {
    fail(ErrorCode::kInvalid, "--chaos: '{}': '{}' is not rank=, rate=, every= or for=", item,
         property);
  }
}

void set_moment(Fault& fault, const std::string& moment, const std::string& item) {
  const std::string by_steps = "step";
  if (!moment.starts_with(by_steps)) {
    fault.at_seconds = seconds_of(moment, item);
    return;
  }
  fault.at_step = number_of(moment.substr(by_steps.size()), item);
  check(fault.rank.has_value(), "--chaos: '{}': a fault at a step needs a rank: kill:rank=1@step50",
        item);
}

Fault parse_fault(const std::string& item) {
  const auto at = item.find('@');
  std::istringstream parts(item.substr(0, at));
  std::string part;
  std::getline(parts, part, ':');
  Fault fault{.kind = kind_of(part, item)};
  if (fault.kind == FaultKind::kStop) fault.for_seconds = kStopSeconds;
  while (std::getline(parts, part, ':')) set_property(fault, part, item);
  if (at != std::string::npos) set_moment(fault, item.substr(at + 1), item);
  const int moments =
      (fault.mean_seconds > 0) + (fault.every_seconds > 0) + (at != std::string::npos ? 1 : 0);
  check(moments <= 1, "--chaos: '{}': give only one of rate, every and @", item);
  return fault;
}

}  // namespace

std::vector<Fault> parse_faults(const std::string& text) {
  std::vector<Fault> faults;
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) faults.push_back(parse_fault(item));
  check(!faults.empty(), "--chaos: no fault is given; a fault is {}", kForm);
  return faults;
}

ChaosPlan::ChaosPlan(const std::vector<Fault>& faults, std::uint64_t seed) : random_(seed) {
  for (const Fault& fault : faults) {
    Pending pending{fault, 0, false};
    pending.moment = pending.fault.at_seconds;
    plan_next(pending);
    pending_.push_back(pending);
  }
}

// Returns a random number in [0, 1). The sequence is the same on every machine, unlike with the
// distributions of the standard library.
double ChaosPlan::uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

void ChaosPlan::plan_next(Pending& pending) {
  const Fault& fault = pending.fault;
  if (fault.mean_seconds > 0) pending.moment -= fault.mean_seconds * std::log(1 - uniform());
  if (fault.every_seconds > 0) pending.moment += fault.every_seconds;
}

ChaosPlan::Action ChaosPlan::begin(const Fault& fault, int rank, double seconds) {
  if (fault.kind == FaultKind::kKill) return {rank, SIGKILL, "kill"};
  const bool slow = fault.kind == FaultKind::kSlow;
  const double end = fault.for_seconds > 0 ? seconds + fault.for_seconds : kNever;
  running_.push_back({rank, end, slow ? seconds + kSlice : end, slow, true});
  return {rank, SIGSTOP, slow ? "slow" : "stop"};
}

void ChaosPlan::go_on(double seconds, std::vector<Action>& actions) {
  for (Running& one : running_) {
    if (one.next > seconds) continue;
    const bool over = seconds >= one.end;
    one.frozen = !over && !one.frozen;
    one.next = over ? kNever : seconds + kSlice;
    actions.push_back({one.rank, one.frozen ? SIGSTOP : SIGCONT, ""});
  }
  std::erase_if(running_, [&](const Running& one) { return one.next == kNever; });
}

bool ChaosPlan::Pending::is_due(double seconds, const StepsOf& steps) const {
  if (done) return false;
  return fault.at_step ? steps(*fault.rank) >= *fault.at_step : moment <= seconds;
}

std::vector<ChaosPlan::Action> ChaosPlan::due(double seconds, int world_size,
                                              const StepsOf& steps) {
  std::vector<Action> actions;
  go_on(seconds, actions);
  for (;;) {
    // The earliest fault begins first, so that the order of the random numbers does not depend on
    // how often this function is called.
    Pending* next = nullptr;
    for (Pending& pending : pending_) {
      if (pending.is_due(seconds, steps) && (next == nullptr || pending.moment < next->moment))
        next = &pending;
    }
    if (next == nullptr) return actions;
    const Fault& fault = next->fault;
    const int rank = fault.rank ? *fault.rank : static_cast<int>(uniform() * world_size);
    actions.push_back(begin(fault, rank, seconds));
    next->done = fault.mean_seconds == 0 && fault.every_seconds == 0;
    plan_next(*next);
  }
}

double ChaosPlan::next_moment() const {
  double next = kNever;
  for (const Pending& pending : pending_) {
    if (!pending.done && !pending.fault.at_step) next = std::min(next, pending.moment);
  }
  for (const Running& one : running_) next = std::min(next, one.next);
  return next;
}

bool ChaosPlan::waits_for_steps() const {
  return std::any_of(pending_.begin(), pending_.end(),
                     [](const Pending& pending) { return pending.fault.at_step && !pending.done; });
}

}  // namespace paceline::launcher
