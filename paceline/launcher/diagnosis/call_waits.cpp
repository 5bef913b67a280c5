#include "paceline/launcher/diagnosis/call_waits.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paceline/engine/core/timing.h"

namespace paceline::launcher {
namespace {

const std::vector<OpenCall>& open_at(const CallReading& reading, CallSide side) {
  return reading.open[static_cast<std::size_t>(side)];
}

// The present moment on the clock of the process's machine, if the process has not ended; otherwise
// the moment when its open calls were last recorded.
std::uint64_t last_moment(const CallReading& reading) {
  const bool runs =
      reading.process == FlightProcess::kRunning || reading.process == FlightProcess::kStopped;
  return runs && reading.now != 0 ? reading.now : reading.looked;
}

// The reading of the process that contains `worker`; null if none is found. A gauge names only the
// first worker of its process, so the open calls are searched too.
const CallReading* reading_of(const std::vector<CallReading>& readings, const std::string& worker) {
  const auto found = std::find_if(readings.begin(), readings.end(), [&](const auto& reading) {
    const auto& open = open_at(reading, CallSide::kCallee);
    return reading.worker == worker ||
           std::any_of(open.begin(), open.end(),
                       [&](const OpenCall& call) { return call.worker == worker; });
  });
  return found == readings.end() ? nullptr : &*found;
}

const OpenCall* same_call(const CallReading& callee, const OpenCall& call) {
  const auto& open = open_at(callee, CallSide::kCallee);
  const auto found = std::find_if(open.begin(), open.end(), [&](const OpenCall& other) {
    return other.worker == call.other && other.caller == call.caller && other.number == call.number;
  });
  return found == open.end() ? nullptr : &*found;
}

// Adds the state of the call at the callee to `wait`. If both processes have ended, the job is
// over, and the state that the callee recorded last is used.
void look_at_callee(const CallReading& caller, const CallReading* callee, const OpenCall& call,
                    CallWait& wait) {
  if (callee == nullptr) return;
  wait.callee_rank = callee->rank;
  const OpenCall* const there = same_call(*callee, call);
  if (there != nullptr) wait.state_seconds = seconds_between(there->begun, last_moment(*callee));
  if (callee->process == FlightProcess::kGone && caller.process != FlightProcess::kGone) {
    wait.state = CalleeState::kGone;
  } else if (callee->process == FlightProcess::kStopped) {
    wait.state = CalleeState::kStopped;
  } else if (there != nullptr) {
    wait.state = there->state == OpenState::kRunning ? CalleeState::kRunning : CalleeState::kQueued;
  } else {
    wait.state = call.state == OpenState::kNotSent ? CalleeState::kNotSent : CalleeState::kNotTaken;
  }
}

std::string words_for(const CallWait& wait) {
  switch (wait.state) {
    case CalleeState::kRunning:
      return fmt::format("its handler has been running there for {:.1f} s", wait.state_seconds);
    case CalleeState::kQueued:
      return fmt::format("it has been in the queue there for {:.1f} s", wait.state_seconds);
    case CalleeState::kNotTaken:
      return wait.callee + " has not received it yet, or has already answered";
    case CalleeState::kNotSent:
      return "it has not been sent, because there is no connection";
    case CalleeState::kStopped:
      return fmt::format("the process of {} is stopped{}", wait.callee,
                         wait.state_seconds > 0 ? " and had received the call" : "");
    case CalleeState::kGone:
      return fmt::format("the process of {} has ended", wait.callee);
    case CalleeState::kUnknown:
      break;
  }
  return wait.callee + " has no record here";
}

// Whether the operations explain nothing, so that the calls are used for the explanation.
bool says_nothing(Verdict verdict) {
  return verdict == Verdict::kNothing || verdict == Verdict::kFinished ||
         verdict == Verdict::kStraggler || verdict == Verdict::kUndecided;
}

// Requires: the last worker in `chain` also occurs earlier in it.
std::string describe_cycle(const std::vector<std::string>& chain, const CallWait& last) {
  const auto begin = std::find(chain.begin(), chain.end(), chain.back());
  return fmt::format("workers wait for each other's calls: {}; {}",
                     fmt::join(begin, chain.end(), ", which calls "), last.sentence);
}

std::string named(const std::string& worker, std::optional<int> rank) {
  return rank ? fmt::format("{} (rank {})", worker, *rank) : worker;
}

}  // namespace

const char* name_of(CalleeState state) {
  constexpr const char* kNames[] = {"running", "queued", "not taken", "not sent",
                                    "stopped", "gone",   "unknown"};
  return kNames[static_cast<std::size_t>(state)];
}

std::vector<CallWait> call_waits(const std::vector<CallReading>& readings) {
  std::vector<CallWait> waits;
  for (const CallReading& reading : readings) {
    for (const OpenCall& call : open_at(reading, CallSide::kCaller)) {
      CallWait wait{.caller = call.worker,
                    .callee = call.other,
                    .method = call.method,
                    .caller_rank = reading.rank,
                    .seconds = seconds_between(call.begun, last_moment(reading))};
      look_at_callee(reading, reading_of(readings, call.other), call, wait);
      wait.sentence = fmt::format("{} has been waiting for {:.1f} s for {} of {}: {}",
                                  named(wait.caller, wait.caller_rank), wait.seconds, wait.method,
                                  named(wait.callee, wait.callee_rank), words_for(wait));
      waits.push_back(std::move(wait));
    }
  }
  std::stable_sort(waits.begin(), waits.end(),
                   [](const CallWait& a, const CallWait& b) { return a.seconds > b.seconds; });
  return waits;
}

std::string explain_waits(const std::vector<CallWait>& waits, std::optional<int> rank) {
  const auto first = std::find_if(waits.begin(), waits.end(), [&](const CallWait& wait) {
    return !rank || wait.caller_rank == *rank;
  });
  if (first == waits.end()) return "";
  const CallWait* wait = &*first;
  std::vector<std::string> chain = {wait->caller};
  while (wait->state != CalleeState::kStopped && wait->state != CalleeState::kGone) {
    const auto next = std::find_if(waits.begin(), waits.end(), [&](const CallWait& other) {
      return other.caller == wait->callee;
    });
    if (next == waits.end()) break;
    const bool is_cycle = std::find(chain.begin(), chain.end(), next->caller) != chain.end();
    chain.push_back(next->caller);
    if (is_cycle) return describe_cycle(chain, *next);
    wait = &*next;
  }
  const std::size_t others = waits.size() - 1;
  if (others == 0) return wait->sentence;
  return fmt::format("{}; {} more call{}", wait->sentence, others,
                     others == 1 ? " waits" : "s wait");
}

Explanation with_calls(Explanation explanation, const std::vector<CallWait>& waits) {
  if (waits.empty()) return explanation;
  if (says_nothing(explanation.verdict)) {
    explanation.sentence = explain_waits(waits);
    explanation.ranks = {waits.front().caller_rank};
    explanation.waited_seconds = waits.front().seconds;
    return explanation;
  }
  for (const int rank : explanation.ranks) {
    const std::string reason = explain_waits(waits, rank);
    if (reason.empty()) continue;
    explanation.sentence += "; " + reason;
    break;
  }
  return explanation;
}

}  // namespace paceline::launcher
