#include "paceline/bench/worker.h"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <exception>
#include <thread>

#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include "paceline/bench/measurement.h"
#include "paceline/bench/messages.h"
#include "paceline/bench/private_socket.h"
#include "paceline/bench/start_line.h"
#include "paceline/core/check.h"
#include "paceline/core/io.h"
#include "paceline/core/socket.h"
#include "paceline/core/thread.h"
#include "paceline/rendezvous/launch_environment.h"

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

class Worker {
 public:
  Worker(const std::string& socket, const LaunchEnvironment& who)
      : who_(who), conversation_(connect_private(socket, Deadline::after(kAnswerLimit))) {}
  ~Worker() { shutdown(conversation_.fd(), SHUT_RDWR); }  // wakes the lifeline
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void run(const Connect& connect) {
    conversation_.send(Hello{who_.rank, who_.world_size}, Deadline::after(kAnswerLimit));
    const Setup setup = conversation_.receive<Setup>(Deadline::after(kAnswerLimit));
    bind_to(setup.cpus);
    try {
      serve(setup, connect);
    } catch (const std::exception& error) {
      conversation_.send_failure(error.what(), Deadline::after(kAnswerLimit));
      throw;
    }
  }

 private:
  void serve(const Setup& setup, const Connect& connect) {
    const auto contestant = connect({who_.rank, who_.world_size, setup.cpus, setup.algorithm});
    StartLine start_line(setup.start_line, who_.rank, who_.world_size, setup.own_core);
    Measurement measurement(*contestant, start_line, who_.rank, who_.world_size);
    conversation_.send(Ready{contestant->version(), contestant->has_symmetric_memory(),
                             contestant->gives_results()},
                       Deadline::after(kAnswerLimit));
    for (Moment since = now(); wait_for_turn(); since = now()) {
      const Moment begin = now();
      TurnResult result =
          measurement.run(conversation_.receive<Turn>(Deadline::after(kAnswerLimit)));
      result.idle_seconds = begin.seconds - since.seconds;
      result.idle_cpu_seconds = begin.cpu_seconds - since.cpu_seconds;
      conversation_.send(result, Deadline::after(kAnswerLimit));
    }
  }

  // False when the coordinator has closed the conversation.
  bool wait_for_turn() {
    std::byte first{};
    ssize_t got = 0;
    do {
      wait_ready(conversation_.fd(), POLLIN, Deadline::never());
      got = receive_some(conversation_.fd(), {&first, 1}, MSG_PEEK);
    } while (got < 0 && errno == EAGAIN);
    return got > 0;
  }

  const LaunchEnvironment who_;
  Conversation conversation_;
  std::jthread lifeline_ = start_lifeline(conversation_.fd());
};

}  // namespace

int run_worker(int argc, char** argv, const Connect& connect) {
  if (argc != 2) {
    fmt::print(stderr, "{}: one rank of a contestant; paceline bench starts it\n", argv[0]);
    return 2;
  }
  try {
    const LaunchEnvironment who = detect_launch_environment();
    Worker(argv[1], who).run(connect);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}

}  // namespace paceline::bench
