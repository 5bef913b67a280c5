#include "apps/bench/contestant/contestant_process.h"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <exception>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/engine/core/system/thread.h"

#include "apps/bench/messages.h"

namespace paceline::bench {

namespace {

using namespace std::chrono_literals;

constexpr auto kSpin = 10us;
constexpr auto kSpinWithYield = 20ms;
constexpr int kPausesBetweenLooks = 16;
constexpr auto kSleepSlice = 100ms;

}  // namespace

Fd StartBarrier::make_memory(int world_size) {
  Fd fd(memfd_create("paceline-bench", MFD_CLOEXEC));
  const auto bytes = static_cast<off_t>(sizeof(Place)) * world_size;
  if (!fd || ftruncate(fd.get(), bytes) != 0) throw system_error("memory for the start barrier");
  return fd;
}

StartBarrier::StartBarrier(const std::string& path, int rank, int world_size, bool own_core)
    : rank_(rank), world_size_(world_size), own_core_(own_core) {
  const Fd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd) throw system_error(fmt::format("opening the memory of the start barrier, {}", path));
  memory_ =
      Mapping::of_file(fd, sizeof(Place) * static_cast<std::size_t>(world_size), Pages::kOnTouch);
  if (!memory_) throw system_error("mapping the memory of the start barrier");
}

StartBarrier::Place& StartBarrier::place(int rank) const {
  return reinterpret_cast<Place*>(memory_.data())[rank];
}

void StartBarrier::line_up(Deadline deadline) {
  ++arrivals_;
  Place& own = place(rank_);
  own.arrivals.store(arrivals_, std::memory_order_seq_cst);
  if (own.sleepers.load(std::memory_order_seq_cst) > 0) futex_wake_all(own.arrivals);
  for (int rank = 0; rank < world_size_; ++rank) wait_for(rank, deadline);
}

bool StartBarrier::line_up_and_ask(bool answer_of_rank_0, Deadline deadline) {
  auto& answer = place(0).answers[arrivals_ % 2];
  if (rank_ == 0) answer.store(answer_of_rank_0, std::memory_order_relaxed);
  line_up(deadline);
  return answer.load(std::memory_order_relaxed);
}

void StartBarrier::wait_for(int rank, Deadline deadline) {
  Place& other = place(rank);
  const auto has_arrived = [&] {
    const auto seen = other.arrivals.load(std::memory_order_acquire);
    return static_cast<std::int32_t>(seen - arrivals_) >= 0;
  };
  if (has_arrived()) return;
  const auto begin = Deadline::Clock::now();
  for (auto waited = 0ns; own_core_ && waited < kSpinWithYield;
       waited = Deadline::Clock::now() - begin) {
    for (int i = 0; i < kPausesBetweenLooks; ++i) {
      if (has_arrived()) return;
      spin_pause();
    }
    if (waited > kSpin) sched_yield();
  }
  while (!has_arrived()) {
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

namespace {

using namespace std::chrono_literals;

constexpr auto kAnswerLimit = 60s;
// The time in which the library must shut down after the coordinator has closed the conversation.
constexpr unsigned kSecondsToEnd = 20;

struct Moment {
  double seconds = 0, cpu_seconds = 0;  // wall-clock time; processor time of all threads
};

double read_clock(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

Moment now() { return {read_clock(CLOCK_MONOTONIC), read_clock(CLOCK_PROCESS_CPUTIME_ID)}; }

// Waits for the coordinator to close its end, then gives the library kSecondsToEnd to shut down
// before SIGALRM ends this process.
std::jthread start_lifeline(int fd) {
  return start_thread("lifeline", [fd] {
    await(fd, POLLRDHUP, Deadline::never());
    alarm(kSecondsToEnd);
  });
}

}  // namespace

RankEnd::RankEnd(const std::string& socket, LaunchEnvironment environment)
    : environment_(std::move(environment)),
      conversation_(connect_private(socket, Deadline::after(kAnswerLimit))),
      lifeline_(start_lifeline(conversation_.fd())) {}

RankEnd::~RankEnd() { shutdown(conversation_.fd(), SHUT_RDWR); }  // wakes the lifeline

void RankEnd::run(const std::function<void(const Setup& setup)>& body) {
  conversation_.send(Hello{environment_.rank, environment_.world_size},
                     Deadline::after(kAnswerLimit));
  const Setup setup = conversation_.receive<Setup>(Deadline::after(kAnswerLimit));
  if (!setup.cpus.empty() && !bind_to_cpus(setup.cpus)) throw system_error("binding to the cpus");
  try {
    body(setup);
  } catch (const std::exception& error) {
    conversation_.send_failure(error.what(), Deadline::after(kAnswerLimit));
    throw;
  }
}

template <class AnyTurn>
void RankEnd::serve(const Ready& ready,
                    const std::function<typename AnyTurn::Result(const AnyTurn&)>& measure) {
  conversation_.send(ready, Deadline::after(kAnswerLimit));
  for (Moment since = now(); wait_for_turn(); since = now()) {
    const Moment begin = now();
    auto result = measure(conversation_.receive<AnyTurn>(Deadline::after(kAnswerLimit)));
    result.idle_seconds = begin.seconds - since.seconds;
    result.idle_cpu_seconds = begin.cpu_seconds - since.cpu_seconds;
    conversation_.send(result, Deadline::after(kAnswerLimit));
  }
}

template void RankEnd::serve(const Ready& ready,
                             const std::function<TurnResult(const Turn&)>& measure);
template void RankEnd::serve(const Ready& ready,
                             const std::function<CallTurnResult(const CallTurn&)>& measure);

// Waits for the next turn. Returns false if the coordinator has closed the conversation.
bool RankEnd::wait_for_turn() {
  std::byte first{};
  ssize_t got = 0;
  do {
    wait_ready(conversation_.fd(), POLLIN, Deadline::never());
    got = receive_some(conversation_.fd(), {&first, 1}, MSG_PEEK);
  } while (got < 0 && errno == EAGAIN);
  return got > 0;
}

int run_rank(int argc, char** argv,
             const std::function<void(RankEnd& end, const Setup& setup)>& body) {
  if (argc != 2) {
    fmt::print(stderr, "{}: one rank of a contestant; paceline bench starts it\n", argv[0]);
    return 2;
  }
  try {
    RankEnd end(argv[1], detect_launch_environment());
    end.run([&](const Setup& setup) { body(end, setup); });
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}

}  // namespace paceline::bench
