// The cost of a large job on one machine: clients of a store, and ranks as threads.
//
//   scale_bench [--clients 1000] [--ranks 64]
//
// Store: the server is a separate process, so that its memory can be measured alone. Each client is
// a thread that connects (with the job's handshake), adds 1 to a counter and waits for the key that
// the last client sets: a barrier. Ranks: threads of one process form a group and all-reduce 1,000
// floats; they need no descriptors. Their memory is the increase of the process's memory while
// the group exists.

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/store/tcp_store.h"
#include "paceline/engine/store/tcp_store_server.h"
#include "paceline/launcher/spawn/spawn.h"

#include "benchmarks/spread.h"

namespace paceline::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Resident memory in 10^6 bytes.
double memory_of(pid_t pid) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stod(line.substr(6)) * 1024 / 1e6;
  }
  return 0;
}

void raise_descriptor_limit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// A child that serves until it is killed, at the latest when this process ends.
class ServerProcess {
 public:
  explicit ServerProcess(const Secret& secret) {
    int ends[2];
    if (pipe(ends) != 0) throw system_error("making a pipe");
    pid_ = fork();
    if (pid_ < 0) throw system_error("forking the server");
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const TcpStoreServer server({"127.0.0.1", 0}, secret);
      const std::uint16_t port = server.port();
      if (write(ends[1], &port, sizeof port) != sizeof port) _exit(1);
      for (;;) pause();
    }
    close(ends[1]);
    const bool is_up = read(ends[0], &port_, sizeof port_) == sizeof port_;
    close(ends[0]);
    check(is_up, "the server did not start");
  }
  ~ServerProcess() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;
  pid_t pid() const { return pid_; }
  Endpoint endpoint() const { return {"127.0.0.1", port_}; }

 private:
  pid_t pid_ = -1;
  std::uint16_t port_ = 0;
};

void store_round(int clients, std::vector<double>& seconds, std::vector<double>& memory) {
  const Secret secret = Secret::generate();
  const ServerProcess server(secret);
  const double before = memory_of(server.pid());
  std::atomic<int> failures = 0;
  std::atomic<int> stay = clients;
  const auto begin = Clock::now();
  {
    std::vector<std::jthread> threads;
    for (int client = 0; client < clients; ++client) {
      threads.emplace_back([&] {
        try {
          TcpStore store(server.endpoint(), secret);
          if (store.add("arrived", 1) == clients) store.set("all", "yes");
          store.wait({"all"});
          // No client leaves before the memory has been measured.
          if (--stay == 0) {
            seconds.push_back(seconds_since(begin));
            memory.push_back(memory_of(server.pid()) - before);
            stay.store(-1);
          }
          while (stay.load() >= 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        } catch (const Error& error) {
          if (failures++ == 0) fmt::print(stderr, "scale_bench: {}\n", error.what());
          stay.store(-1);
        }
      });
    }
  }
  check(failures == 0, "{} of {} clients failed", failures.load(), clients);
}

struct GroupFigures {
  std::vector<double> forming_s, reducing_ms, memory_mb, descriptors;
};

double num_descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<double>(std::distance(begin(entries), end(entries)));
}

void group_round(int ranks, GroupFigures& figures) {
  const double memory_before = memory_of(getpid());
  const double descriptors_before = num_descriptors();
  const auto begin = Clock::now();
  spawn(ranks,
        [&](ProcessGroup& group) {
          const double formed = seconds_since(begin);
          std::vector<float> data(1000, 1.0f);
          group.barrier();
          const auto start = Clock::now();
          group.all_reduce(std::span(data));
          const double took = seconds_since(start);
          check(data[0] == static_cast<float>(group.world_size()), "a wrong sum");
          // No rank leaves before rank 0 has measured.
          group.barrier();
          if (group.rank() != 0) {
            group.barrier();
            return;
          }
          figures.forming_s.push_back(formed);
          figures.reducing_ms.push_back(took * 1e3);
          figures.memory_mb.push_back(memory_of(getpid()) - memory_before);
          figures.descriptors.push_back(num_descriptors() - descriptors_before);
          group.barrier();
        },
        {.as_threads = true});
}

}  // namespace
}  // namespace paceline::benchmarks

int main(int argc, char** argv) {
  using namespace paceline;
  using namespace paceline::benchmarks;
  CLI::App app("How large a job one machine can hold.");
  int clients = 1000, ranks = 256, rounds = 5;
  app.add_option("--clients", clients, "Clients of the store")->check(CLI::Range(1, 10'000));
  app.add_option("--ranks", ranks, "Ranks as threads")->check(CLI::Range(2, 1024));
  app.add_option("--rounds", rounds, "Rounds of each measurement")->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  try {
    raise_descriptor_limit();
    std::vector<double> seconds, memory;
    GroupFigures group;
    for (int round = 0; round < rounds; ++round) {
      store_round(clients, seconds, memory);
      group_round(ranks, group);
    }
    fmt::print("{} rounds, median [least, most]\n", rounds);
    fmt::print("| {} clients connect to a store and pass a barrier, s | {} |\n", clients,
               with_spread(seconds));
    fmt::print("| memory of the server for them, MB | {} |\n", with_spread(memory));
    fmt::print("| {} ranks as threads form a group, s | {} |\n", ranks,
               with_spread(group.forming_s));
    fmt::print("| their all-reduce of 1000 floats, ms | {} |\n", with_spread(group.reducing_ms));
    fmt::print("| memory that the group takes, MB | {} |\n", with_spread(group.memory_mb));
    fmt::print("| descriptors that it takes | {} |\n", with_spread(group.descriptors));
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "scale_bench: {}\n", error.what());
    return 1;
  }
}
