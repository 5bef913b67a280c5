#include "paceline/launcher/diagnosis/hang_watch.h"

#include <algorithm>
#include <utility>

#include "paceline/engine/telemetry/flight_file.h"
#include "paceline/engine/telemetry/step_gauge.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;
using Seconds = std::chrono::duration<double>;

// Looks per timeout, so that a hang is reported at most this share of it late.
constexpr int kLooks = 20;
constexpr int kReports = 4;  // per timeout

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

// Idle ranks are one only in a job that has made steps, which the others' launchers know.
bool HangWatch::is_suspicious(const Ranks& ranks) const {
  const bool steps = std::any_of(progress_.begin(), progress_.end(),
                                 [](const auto& entry) { return entry.second.steps > 0; });
  return (quiet_.idle() && steps) || !quiet_.stopped().empty() ||
         !quiet_.meeting().missing.empty() || is_waited_long(ranks);
}

// The wait began with the last operation, just before the standstill was first seen.
bool HangWatch::is_waited_long(const Ranks& ranks) const {
  try {
    return longest_wait(read_flights(directory_).flights, ranks) >= Seconds(timeout_).count();
  } catch (const Error&) {
    return false;  // no records, or not yet
  }
}

}  // namespace paceline::launcher
