#include "apps/bench/rank_end.h"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <exception>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/io.h"
#include "paceline/engine/core/socket.h"
#include "paceline/engine/core/thread.h"

#include "apps/bench/private_socket.h"

namespace paceline::bench {
namespace {

using namespace std::chrono_literals;

constexpr auto kAnswerLimit = 60s;
// For the library's own end, once the coordinator has closed the conversation.
constexpr unsigned kSecondsToEnd = 20;

struct Moment {
  double seconds = 0, cpu_seconds = 0;  // of the clock, of all threads of this process
};

double read_clock(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

Moment now() { return {read_clock(CLOCK_MONOTONIC), read_clock(CLOCK_PROCESS_CPUTIME_ID)}; }

void bind_to(const std::vector<int>& cpus) {
  if (cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) throw system_error("binding to the cpus");
}

// The alarm ends this process when the coordinator is gone for a while but the library still hangs
// or its end does; asleep until then.
std::jthread start_lifeline(int fd) {
  return start_thread("lifeline", [fd] {
    await(fd, POLLRDHUP, Deadline::never());
    alarm(kSecondsToEnd);
  });
}

}  // namespace

RankEnd::RankEnd(const std::string& socket, LaunchEnvironment who)
    : who_(std::move(who)),
      conversation_(connect_private(socket, Deadline::after(kAnswerLimit))),
      lifeline_(start_lifeline(conversation_.fd())) {}

RankEnd::~RankEnd() { shutdown(conversation_.fd(), SHUT_RDWR); }  // wakes the lifeline

void RankEnd::run(const std::function<void(const Setup& setup)>& body) {
  conversation_.send(Hello{who_.rank, who_.world_size}, Deadline::after(kAnswerLimit));
  const Setup setup = conversation_.receive<Setup>(Deadline::after(kAnswerLimit));
  bind_to(setup.cpus);
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

// False when the coordinator has closed the conversation.
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
