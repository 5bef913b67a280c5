#include "paceline/launch/hang_watch.h"

#include <algorithm>
#include <utility>

#include "paceline/telemetry/flight_file.h"

namespace paceline::launch {
namespace {

using namespace std::chrono_literals;
using Seconds = std::chrono::duration<double>;

// Looks per timeout, so that a hang is said at most this share of it late.
constexpr int kLooks = 20;
constexpr int kReports = 4;  // per timeout

double longest_wait(const std::vector<Flight>& flights, const std::vector<int>& ranks) {
  std::uint64_t longest = 0;
  for (const Flight& flight : flights) {
    if (std::find(ranks.begin(), ranks.end(), flight.rank) == ranks.end()) continue;
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

HangWatch::HangWatch(std::chrono::nanoseconds timeout, std::string directory)
    : timeout_(timeout), directory_(std::move(directory)), moved_(Clock::now()) {}

std::chrono::nanoseconds HangWatch::interval() const {
  return std::clamp<std::chrono::nanoseconds>(timeout_ / kLooks, 20ms, 1s);
}

bool HangWatch::look(const std::vector<int>& ranks, Clock::time_point now) {
  std::map<int, std::uint64_t> begun;
  for (const int rank : ranks) {
    begun[rank] = num_begun_in(directory_ + "/" + flight_file_name(rank));
  }
  if (begun != begun_) {
    if (told_) recovered_ = Seconds(now - moved_).count();
    begun_ = std::move(begun);
    moved_ = now;
    told_ = settled_ = false;
    return false;
  }
  if (settled_ || now - moved_ < timeout_ || now - reported_ < timeout_ / kReports) return false;
  if (!is_waited_long(ranks)) return false;
  reported_ = now;
  return true;
}

void HangWatch::tell(bool settled) {
  told_ = true;
  settled_ = settled;
}

std::optional<double> HangWatch::take_recovery() { return std::exchange(recovered_, {}); }

// The wait began with the last operation, just before the standstill was first seen.
bool HangWatch::is_waited_long(const std::vector<int>& ranks) const {
  try {
    return longest_wait(read_flights(directory_).flights, ranks) >= Seconds(timeout_).count();
  } catch (const Error&) {
    return false;  // no records, or not yet
  }
}

}  // namespace paceline::launch
