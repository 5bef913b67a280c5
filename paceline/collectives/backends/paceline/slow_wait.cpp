#include "paceline/collectives/backends/paceline/slow_wait.h"

#include <chrono>

#include <fmt/format.h>

#include "paceline/collectives/flight/group_flight.h"
#include "paceline/core/log.h"
#include "paceline/transport/advice.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

constexpr auto kWarnAfter = 10s;

double seconds_since(Deadline::Clock::time_point begin) {
  return std::chrono::duration<double>(Deadline::Clock::now() - begin).count();
}

}  // namespace

Error slow_wait_error(const Mesh& mesh, const Fingerprint& operation, const WaitOptions& wait,
                      Deadline::Clock::time_point begin, const std::string& missing) {
  return Error(ErrorCode::kTimeout,
               fmt::format("rank {}: {} in group {} timed out after {:.1f} s: {}; {}{}",
                           mesh.rank(), operation.describe(), mesh.name(), seconds_since(begin),
                           missing, kAdviceForLate, told_by_records(wait.recorder)));
}

bool warn_of_slow_wait(const Fingerprint& operation, Deadline::Clock::time_point begin,
                       const std::string& missing) {
  if (Deadline::Clock::now() - begin < kWarnAfter) return false;
  log::warning(fmt::format("{} waits since {:.0f} s: {}", operation.describe(),
                           seconds_since(begin), missing));
  return true;
}

}  // namespace paceline
