#include "paceline/launcher/diagnosis/quiet_ranks.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

#include <fmt/format.h>
#include <unistd.h>

namespace paceline::launcher {
namespace {

// What a process that waits may use all the same: a fiftieth, as threads that look around do.
constexpr double kIdleShare = 0.02;
constexpr long kIdleTicks = 2;        // of a short window
constexpr int kLooksForTheFirst = 4;  // in the limit, until a rank has arrived at the meeting

bool is_stopped(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  const auto end = line.rfind(')');
  return end != std::string::npos && end + 2 < line.size() && line[end + 2] == 'T';
}

bool any_is_stopped(pid_t rank) {
  const std::vector<pid_t> family = family_of(rank);
  return std::any_of(family.begin(), family.end(), is_stopped);
}

bool is_idle(const ThreadTimes& before, const ThreadTimes& after, double seconds) {
  const auto allowed =
      std::max(kIdleTicks,
               static_cast<long>(kIdleShare * seconds * static_cast<double>(sysconf(_SC_CLK_TCK))));
  long ticks = 0;
  for (const auto& [thread, now] : after) {
    const auto earlier = before.find(thread);
    ticks += now - (earlier == before.end() ? 0 : earlier->second);
  }
  return ticks <= allowed;
}

std::vector<int> in_both(const std::vector<int>& a, const std::vector<int>& b) {
  std::vector<int> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

}  // namespace

void QuietRanks::forget() {
  sight_.reset();
  assembly_.reset();
  idle_ = false;
  stopped_.clear();
  absence_ = {};
}

void QuietRanks::look(const Ranks& ranks, const std::vector<int>& recorded, Clock::time_point now) {
  if (recorded.empty()) look_at_meeting(now);
  if (sight_ && now - sight_->at < limit_ / 2) return;
  Sight sight = sight_of(ranks, recorded, now);
  if (sight_) compare(*sight_, sight);
  sight_ = std::move(sight);
}

QuietRanks::Sight QuietRanks::sight_of(const Ranks& ranks, const std::vector<int>& recorded,
                                       Clock::time_point now) const {
  Sight sight{.at = now};
  for (const auto& [rank, pid] : ranks) {
    sight.times[rank] = thread_times(pid);
    const bool counts = std::find(recorded.begin(), recorded.end(), rank) != recorded.end();
    if (counts && any_is_stopped(pid)) sight.stopped.push_back(rank);
  }
  return sight;
}

void QuietRanks::compare(const Sight& before, const Sight& now) {
  const double seconds = std::chrono::duration<double>(now.at - before.at).count();
  idle_ = std::all_of(now.times.begin(), now.times.end(), [&](const auto& entry) {
    const auto earlier = before.times.find(entry.first);
    return earlier != before.times.end() && is_idle(earlier->second, entry.second, seconds);
  });
  stopped_ = in_both(before.stopped, now.stopped);
}

void QuietRanks::look_at_meeting(Clock::time_point now) {
  const bool anybody_waits = assembly_ && !assembly_->absence.waiting.empty();
  const auto pause = anybody_waits ? limit_ : limit_ / kLooksForTheFirst;
  if (!meeting_ || (assembly_ && now - assembly_->at < pause)) return;
  Assembly assembly{now, meeting_()};
  if (assembly_) {
    absence_ = {in_both(assembly_->absence.waiting, assembly.absence.waiting),
                assembly.absence.missing};
    if (absence_.waiting.empty()) absence_ = {};
  }
  assembly_ = std::move(assembly);
}

}  // namespace paceline::launcher
