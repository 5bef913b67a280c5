#include "apps/bench/start_line.h"

#include <chrono>

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/futex.h"

namespace paceline::bench {
namespace {

using namespace std::chrono_literals;

constexpr auto kSpin = 10us;
constexpr auto kSpinWithYield = 20ms;
constexpr int kPausesBetweenLooks = 16;
constexpr auto kSleepSlice = 100ms;

}  // namespace

Fd StartLine::make_memory(int world_size) {
  Fd fd(memfd_create("paceline-bench", MFD_CLOEXEC));
  const auto bytes = static_cast<off_t>(sizeof(Place)) * world_size;
  if (!fd || ftruncate(fd.get(), bytes) != 0) throw system_error("memory for the start line");
  return fd;
}

StartLine::StartLine(const std::string& path, int rank, int world_size, bool own_core)
    : rank_(rank), world_size_(world_size), own_core_(own_core) {
  const Fd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd) throw system_error(fmt::format("opening the start line {}", path));
  memory_ =
      Mapping::of_file(fd, sizeof(Place) * static_cast<std::size_t>(world_size), Pages::kOnTouch);
  if (!memory_) throw system_error("mapping the start line");
}

StartLine::Place& StartLine::place(int rank) const {
  return reinterpret_cast<Place*>(memory_.data())[rank];
}

void StartLine::line_up(Deadline deadline) {
  ++arrivals_;
  Place& own = place(rank_);
  own.arrivals.store(arrivals_, std::memory_order_seq_cst);
  if (own.sleepers.load(std::memory_order_seq_cst) > 0) futex_wake_all(own.arrivals);
  for (int rank = 0; rank < world_size_; ++rank) wait_for(rank, deadline);
}

bool StartLine::line_up_and_ask(bool answer_of_rank_0, Deadline deadline) {
  auto& answer = place(0).answers[arrivals_ % 2];
  if (rank_ == 0) answer.store(answer_of_rank_0, std::memory_order_relaxed);
  line_up(deadline);
  return answer.load(std::memory_order_relaxed);
}

void StartLine::wait_for(int rank, Deadline deadline) {
  Place& other = place(rank);
  const auto has_come = [&] {
    const auto seen = other.arrivals.load(std::memory_order_acquire);
    return static_cast<std::int32_t>(seen - arrivals_) >= 0;
  };
  if (has_come()) return;
  const auto begin = Deadline::Clock::now();
  for (auto waited = 0ns; own_core_ && waited < kSpinWithYield;
       waited = Deadline::Clock::now() - begin) {
    for (int i = 0; i < kPausesBetweenLooks; ++i) {
      if (has_come()) return;
      spin_pause();
    }
    if (waited > kSpin) sched_yield();
  }
  while (!has_come()) {
    if (deadline.expired()) {
      fail(ErrorCode::kTimeout, "rank {}: rank {} did not reach the start line", rank_, rank);
    }
    other.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const auto seen = other.arrivals.load(std::memory_order_seq_cst);
    if (static_cast<std::int32_t>(seen - arrivals_) < 0) {
      futex_wait(other.arrivals, seen, kSleepSlice);
    }
    other.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }
}

}  // namespace paceline::bench
