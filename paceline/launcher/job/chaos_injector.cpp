#include "paceline/launcher/job/chaos_injector.h"

#include <algorithm>
#include <csignal>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paceline/engine/core/timing.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;

// How often to check whether the step for which a fault waits was made: no event reports a step.
constexpr std::chrono::nanoseconds kStepInterval = 10ms;

}  // namespace

ChaosInjector::ChaosInjector(const std::vector<Fault>& faults, std::uint64_t seed,
                             Consoles& consoles, const JobFlights& flights)
    : consoles_(consoles),
      flights_(flights),
      seed_(seed),
      active_(!faults.empty()),
      plan_(faults, seed) {
  for (const Fault& fault : faults) {
    if (fault.rank) named_.insert(*fault.rank);
    if (fault.at_step) at_steps_.push_back({*fault.rank, *fault.at_step, {}});
  }
}

double ChaosInjector::seconds() const { return seconds_since(*started_); }

void ChaosInjector::tend(const Ranks& ranks) {
  if (!active_) return;
  if (!started_) started_ = Clock::now();
  largest_world_ = std::max(largest_world_, ranks.world_size);
  const auto steps = [this](int rank) {
    const auto reading = flights_.steps({rank});
    return reading ? reading->steps : 0;
  };
  for (AtStep& one : at_steps_) {
    if (ranks.send(one.rank, 0)) one.reported = std::max(one.reported.value_or(0), steps(one.rank));
  }
  for (const auto& action : plan_.due(seconds(), ranks.world_size, steps)) {
    apply(action, ranks);
  }
}

void ChaosInjector::apply(const ChaosPlan::Action& action, const Ranks& ranks) {
  const bool done = action.signal == SIGKILL
                        ? ranks.kill_on_purpose(action.rank, "killed by --chaos")
                        : ranks.send(action.rank, action.signal);
  if (!done || action.fault.empty()) return;
  ++faults_[action.fault];
  consoles_.say(fmt::format("paceline: chaos: {} of rank {} after {:.1f} s\n", action.fault,
                            action.rank, seconds()));
}

Deadline ChaosInjector::next_deadline(bool running) const {
  if (!active_ || !running) return Deadline::never();
  if (!started_) return Deadline::after(std::chrono::milliseconds(0));
  const double next = plan_.next_moment();
  const Deadline step =
      plan_.waits_for_steps() ? Deadline::after(kStepInterval) : Deadline::never();
  if (next >= ChaosPlan::kNever) return step;
  const Deadline moment = Deadline::after(std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(std::max(0.0, next - seconds()))));
  return step.moment() < moment.moment() ? step : moment;
}

std::string ChaosInjector::summary() const {
  if (!active_) return "";
  int count = 0;
  std::string kinds;
  for (const auto& [name, times] : faults_) {
    count += times;
    kinds += fmt::format("{}{} {}", kinds.empty() ? "" : ", ", name, times);
  }
  return fmt::format("{}{}, seed {}{}", count, kinds.empty() ? "" : fmt::format(" ({})", kinds),
                     seed_, missing_ranks() + missing_steps());
}

std::string ChaosInjector::missing_steps() const {
  std::string text;
  for (const auto& [rank, step, reported] : at_steps_) {
    if (!reported || *reported >= step) continue;
    text += fmt::format("; no fault at step {} of rank {}, which reported ", step, rank);
    text += *reported > 0 ? fmt::format("only {} steps", *reported)
                          : "no steps: DistributedDataParallel and TrainingRun report them, other "
                            "programs need a StepLog";
  }
  return text;
}

std::string ChaosInjector::missing_ranks() const {
  const std::vector<int> missing(named_.lower_bound(largest_world_), named_.end());
  if (missing.empty()) return "";
  return fmt::format("; --chaos names ranks that the job never had: {}", fmt::join(missing, ", "));
}

}  // namespace paceline::launcher
