#include "paceline/launcher/diagnosis/hang_watch.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include <unistd.h>

#include "paceline/engine/core/system/host.h"
#include "paceline/engine/telemetry/flight_file.h"
#include "paceline/engine/telemetry/step_gauge.h"

namespace paceline::launcher {

namespace {

// The share of a cpu that an idle rank may use, for threads that wake up now and then.
constexpr double kIdleShare = 0.02;
constexpr long kIdleTicks = 2;        // always allowed, even in a short window
constexpr int kLooksForTheFirst = 4;  // readings of the rendezvous per limit, until a rank waits

bool is_stopped(pid_t pid) {
  const auto status = process_status(pid);
  return status && status->state == 'T';
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
  snapshot_.reset();
  assembly_.reset();
  idle_ = false;
  stopped_.clear();
  absence_ = {};
}

void QuietRanks::look(const Ranks& ranks, const std::vector<int>& recorded, Clock::time_point now) {
  if (recorded.empty()) look_at_meeting(now);
  if (snapshot_ && now - snapshot_->at < limit_ / 2) return;
  Snapshot snapshot = snapshot_of(ranks, recorded, now);
  if (snapshot_) compare(*snapshot_, snapshot);
  snapshot_ = std::move(snapshot);
}

QuietRanks::Snapshot QuietRanks::snapshot_of(const Ranks& ranks, const std::vector<int>& recorded,
                                             Clock::time_point now) const {
  Snapshot snapshot{.at = now};
  for (const auto& [rank, pid] : ranks) {
    snapshot.times[rank] = thread_times(pid);
    const bool counts = std::find(recorded.begin(), recorded.end(), rank) != recorded.end();
    if (counts && any_is_stopped(pid)) snapshot.stopped.push_back(rank);
  }
  return snapshot;
}

void QuietRanks::compare(const Snapshot& before, const Snapshot& now) {
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

namespace {

using namespace std::chrono_literals;
using Seconds = std::chrono::duration<double>;

// Calls of look() per timeout, unless interval() would then be below 20 ms or above 1 s.
constexpr int kLooks = 20;
constexpr int kReports = 4;  // how many times per timeout look() returns true again

double longest_wait(const std::vector<Flight>& flights, const HangWatch::Ranks& ranks) {
  std::uint64_t longest = 0;
  for (const Flight& flight : flights) {
    if (!ranks.contains(flight.rank)) continue;
    if (flight.process == FlightProcess::kGone || flight.end != FlightEnd::kOpen) continue;
    for (const FlightOperation& operation : flight.operations) {
      const bool open =
          operation.state == FlightState::kEntered || operation.state == FlightState::kStarted;
      if (open && flight.now > operation.entered) {
        longest = std::max(longest, flight.now - operation.entered);
      }
    }
  }
  return static_cast<double>(longest) * 1e-9;
}

}  // namespace

HangWatch::HangWatch(std::chrono::nanoseconds timeout, std::string directory,
                     QuietRanks::Meeting meeting)
    : timeout_(timeout),
      directory_(std::move(directory)),
      quiet_(timeout, std::move(meeting)),
      moved_(Clock::now()) {}

std::chrono::nanoseconds HangWatch::interval() const {
  return std::clamp<std::chrono::nanoseconds>(timeout_ / kLooks, 20ms, 1s);
}

HangWatch::Progress HangWatch::progress_of(int rank) const {
  const auto gauge = read_step_gauge(directory_ + "/" + step_gauge_name(rank));
  return {num_begun_in(directory_ + "/" + flight_file_name(rank)), gauge ? gauge->steps : 0};
}

bool HangWatch::look(const Ranks& ranks, Clock::time_point now) {
  std::map<int, Progress> progress;
  std::vector<int> recorded;
  for (const auto& [rank, pid] : ranks) {
    progress[rank] = progress_of(rank);
    if (progress[rank] != Progress{}) recorded.push_back(rank);
  }
  if (progress != progress_) {
    if (told_) recovered_ = Seconds(now - moved_).count();
    progress_ = std::move(progress);
    moved_ = now;
    told_ = settled_ = false;
    quiet_.forget();
    return false;
  }
  if (now - moved_ >= timeout_ / 2) quiet_.look(ranks, recorded, now);
  if (settled_ || now - moved_ < timeout_ || now - reported_ < timeout_ / kReports) return false;
  if (!is_suspicious(ranks)) return false;
  reported_ = now;
  return true;
}

Standstill HangWatch::standstill(const Ranks& ranks, Clock::time_point now) const {
  Standstill standstill{.seconds = Seconds(now - moved_).count(),
                        .idle = ranks.empty() || quiet_.idle()};
  for (const auto& [rank, progress] : progress_) standstill.steps += progress.steps;
  for (const auto& [rank, pid] : ranks) standstill.running.push_back(rank);
  standstill.stopped = quiet_.stopped();
  standstill.waiting = quiet_.meeting().waiting;
  standstill.missing = quiet_.meeting().missing;
  return standstill;
}

void HangWatch::tell(bool settled) {
  told_ = true;
  settled_ = settled;
}

std::optional<double> HangWatch::take_recovery() { return std::exchange(recovered_, {}); }

// Idle ranks are suspicious only if the ranks of this host have made steps before.
bool HangWatch::is_suspicious(const Ranks& ranks) const {
  const bool steps = std::any_of(progress_.begin(), progress_.end(),
                                 [](const auto& entry) { return entry.second.steps > 0; });
  return (quiet_.idle() && steps) || !quiet_.stopped().empty() ||
         !quiet_.meeting().missing.empty() || has_long_wait(ranks);
}

// Whether a rank has waited for the whole timeout. A wait that is still open began before look()
// last saw progress, because the beginning of an operation is progress.
bool HangWatch::has_long_wait(const Ranks& ranks) const {
  try {
    return longest_wait(read_flights(directory_).flights, ranks) >= Seconds(timeout_).count();
  } catch (const Error&) {
    return false;  // there are no records (yet)
  }
}

}  // namespace paceline::launcher
