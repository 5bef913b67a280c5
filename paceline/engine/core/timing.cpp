#include "paceline/engine/core/timing.h"

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <fstream>
#include <string>

#ifdef __x86_64__
#include <x86intrin.h>
#endif

namespace paceline {

namespace {

std::uint64_t kernel_time() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u +
         static_cast<std::uint64_t>(now.tv_nsec);
}

#ifdef __x86_64__

// Whether the kernel keeps time by the time-stamp counter. The kernel does so only while the
// counters of all processors agree and run at one rate.
bool counter_keeps_time() noexcept {
  try {
    std::ifstream file("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    std::string source;
    return std::getline(file, source) && source == "tsc";
  } catch (...) {
    return false;
  }
}

// One thread's view of the counter, with its rate between the last two readings of the kernel's
// clock.
class ScaledCounter {
 public:
  std::uint64_t now() noexcept {
    const std::uint64_t ticks = __rdtsc();
    const std::uint64_t since = ticks - ticks_;  // huge if the counter has stepped back
    const bool is_known = since < kMaxTicks && rate_ > 0;
    const auto guess = [&] {
      return time_ + static_cast<std::uint64_t>(static_cast<double>(since) * rate_);
    };
    return last_ = std::max(last_, is_known ? guess() : look(ticks));
  }

 private:
  // Reads the kernel's clock. The reading sets the rate only if the thread was not interrupted
  // meanwhile, and only if the rate is plausible: the counter of a virtual machine may have stood
  // still.
  std::uint64_t look(std::uint64_t ticks) noexcept {
    const std::uint64_t time = kernel_time();
    const bool was_quick = __rdtsc() - ticks < kMaxReadTicks;
    const auto between_looks = static_cast<double>(time - time_);
    if (was_quick && between_looks > kMinReadInterval) {
      const double rate = ticks_ == 0 ? 0 : between_looks / static_cast<double>(ticks - ticks_);
      rate_ = rate > kMinRate && rate < kMaxRate ? rate : 0;
      ticks_ = ticks;
      time_ = time;
    }
    return time;
  }

  static constexpr std::uint64_t kMaxTicks = 2'000'000;  // about a millisecond
  static constexpr std::uint64_t kMaxReadTicks = 2000;   // less than a microsecond
  static constexpr double kMinReadInterval = 3e5;        // ns
  static constexpr double kMinRate = 0.1, kMaxRate = 10;

  std::uint64_t ticks_ = 0;
  std::uint64_t time_ = 0;
  double rate_ = 0;  // ns per tick; 0: unknown
  std::uint64_t last_ = 0;
};

#endif

}  // namespace

std::uint64_t record_time() noexcept {
#ifdef __x86_64__
  static const bool by_counter = counter_keeps_time();
  if (by_counter) {
    thread_local ScaledCounter counter;
    return counter.now();
  }
#endif
  return kernel_time();
}

namespace {

// How long this thread has waited for a core so far. RunningTimer reads this twice, both times
// within its interval of the wall clock, so that seconds() is never negative.
double waited_seconds() {
  std::ifstream file("/proc/thread-self/schedstat");
  std::uint64_t ran_ns = 0, waited_ns = 0;
  file >> ran_ns >> waited_ns;
  return 1e-9 * static_cast<double>(waited_ns);
}

}  // namespace

RunningTimer::RunningTimer()
    : begin_(std::chrono::steady_clock::now()), waited_(waited_seconds()) {}

double RunningTimer::wall_seconds() const { return seconds_since(begin_); }

double RunningTimer::seconds() const {
  const double waited = waited_seconds() - waited_;
  return wall_seconds() - waited;
}

}  // namespace paceline
