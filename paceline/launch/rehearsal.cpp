#include "paceline/launch/rehearsal.h"

#include <algorithm>

#include <fmt/format.h>

namespace paceline::launch {

Rehearsal::Rehearsal(const std::vector<Fault>& faults, std::uint64_t seed, Consoles& consoles)
    : consoles_(consoles), seed_(seed), active_(!faults.empty()), plan_(faults, seed) {}

double Rehearsal::seconds() const {
  return std::chrono::duration<double>(Clock::now() - *started_).count();
}

void Rehearsal::tend(Generation* running) {
  if (!active_) return;
  if (running == nullptr) {
    if (started_ && !idle_since_) idle_since_ = Clock::now();
    return;
  }
  if (!started_) started_ = Clock::now();
  if (idle_since_) idle_ += Clock::now() - *idle_since_;
  idle_since_.reset();
  last_generation_ = running->place().generation;
  for (const auto& action : plan_.due(seconds(), running->place().world_size)) {
    apply(action, *running);
  }
}

void Rehearsal::apply(const ChaosPlan::Action& action, Generation& running) {
  if (!running.send_to(action.rank, action.signal) || action.fault.empty()) return;
  ++faults_[action.fault];
  consoles_.say(fmt::format("paceline: chaos: {} of rank {} after {:.1f} s\n", action.fault,
                            action.rank, seconds()));
}

Deadline Rehearsal::next_deadline(bool running) const {
  if (!active_ || !running) return Deadline::never();
  if (!started_) return Deadline::after({});
  const double next = plan_.next_moment();
  if (next >= ChaosPlan::kNever) return Deadline::never();
  return Deadline::after(std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(std::max(0.0, next - seconds()))));
}

std::string Rehearsal::summary() const {
  if (!active_ || !started_) return "";
  int count = 0;
  std::string kinds;
  for (const auto& [name, times] : faults_) {
    count += times;
    kinds += fmt::format("{}{} {}", kinds.empty() ? "" : ", ", name, times);
  }
  const double total = seconds();
  return fmt::format(
      "paceline: chaos (seed {}): {:.1f} s\n"
      "  faults on this node   {}{}\n"
      "  generations           {}\n"
      "  without ranks         {:.1f} s ({:.1f}% of the time)\n",
      seed_, total, count, kinds.empty() ? "" : fmt::format(" ({})", kinds), last_generation_ + 1,
      idle_.count(), total > 0 ? 100 * idle_.count() / total : 0.0);
}

}  // namespace paceline::launch
