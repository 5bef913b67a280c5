#include "paceline/launcher/diagnosis/rank_watch.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <sys/timerfd.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/io.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;

// When to look, from the start and then from look to look: two windows of 2 s.
constexpr std::array<std::chrono::nanoseconds, 4> kPauses = {3s, 2s, 15s, 2s};

}  // namespace

RankWatch::RankWatch(int rank, pid_t pid, RankPlacement placement)
    : rank_(rank),
      pid_(pid),
      placement_(std::move(placement)),
      timer_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
  if (!timer_) throw system_error("timerfd_create()");
  wait_for(kPauses[0]);
}

void RankWatch::wait_for(std::chrono::nanoseconds time) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
  const itimerspec spec{.it_interval = {}, .it_value = {seconds.count(), (time - seconds).count()}};
  timerfd_settime(timer_.get(), 0, &spec, nullptr);
}

std::vector<Warning> RankWatch::look() {
  std::uint64_t expirations = 0;
  if (!read_record(timer_.get(), expirations)) return {};
  const auto now = std::chrono::steady_clock::now();
  const ThreadTimes times = thread_times(pid_);
  ++num_looks_;
  std::vector<Warning> warnings;
  if (num_looks_ % 2 == 0) {
    const double seconds = std::chrono::duration<double>(now - before_at_).count();
    warnings = judge(busy_threads(before_, times, seconds));
  }
  before_ = times;
  before_at_ = now;
  const auto next = static_cast<std::size_t>(num_looks_);
  if (next < kPauses.size()) wait_for(kPauses[next]);
  return warnings;
}

std::vector<Warning> RankWatch::judge(int busy) {
  std::vector<Warning> warnings;
  if (!said_blas_) {
    const auto path = loaded_reference_blas(pid_);
    said_blas_ = path.has_value();
    if (path) {
      warnings.push_back({fmt::format("rank {} has loaded the reference BLAS, {}", rank_, *path),
                          "matrix products take one thread, whatever it is told, and about 20 "
                          "times as long as with OpenBLAS",
                          "apt-get install libopenblas0-pthread"});
    }
  }
  // Loader, communication and progress threads are expected beside those that compute.
  const int expected = 2 * placement_.num_threads + 1;
  const int cpus = static_cast<int>(placement_.cpus.size());
  if (!said_threads_ && busy > std::max(expected, cpus)) {
    said_threads_ = true;
    warnings.push_back(
        {fmt::format("rank {} keeps {} threads busy on {} cpu{}, and was told to compute with {}",
                     rank_, busy, cpus, cpus == 1 ? "" : "s", placement_.num_threads),
         fmt::format("each runs about {:.0f}% of the time, and those that wait for each other lose "
                     "more",
                     100.0 * cpus / busy),
         "a library that does not follow OMP_NUM_THREADS needs its own setting; so do loader "
         "threads"});
  }
  return warnings;
}

}  // namespace paceline::launcher
