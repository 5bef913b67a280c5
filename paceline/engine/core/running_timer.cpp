#include "paceline/engine/core/running_timer.h"

#include <cstdint>
#include <fstream>

namespace paceline {
namespace {

// So far, by this thread, for a core. Read within the time on the clock, so that this is never
// less.
double waited_seconds() {
  std::ifstream file("/proc/thread-self/schedstat");
  std::uint64_t ran_ns = 0, waited_ns = 0;
  file >> ran_ns >> waited_ns;
  return 1e-9 * static_cast<double>(waited_ns);
}

}  // namespace

RunningTimer::RunningTimer()
    : begin_(std::chrono::steady_clock::now()), waited_(waited_seconds()) {}

double RunningTimer::wall_seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
}

double RunningTimer::seconds() const {
  const double waited = waited_seconds() - waited_;
  return wall_seconds() - waited;
}

}  // namespace paceline
