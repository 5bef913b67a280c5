// The cost of one small call for the rank that makes it, for profilers that count instructions:
//
//   call_bench                             nanoseconds per call
//   valgrind --tool=callgrind --toggle-collect='send_many*' call_bench --rounds 4
//
// The two ranks are threads of this process. Messages of 64 bytes are sent in turns: one rank sends
// while the other sleeps, so that neither waits for the other's cache lines. benchmarks/README.md
// has results.

#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "paceline/engine/collectives/group/init_process_group.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/store/memory_store.h"

namespace {

using paceline::ProcessGroup;
using Clock = std::chrono::steady_clock;

struct Setting {
  std::size_t bytes = 4096;
  int calls = 500;
  int rounds = 20;
};

// The messages of a turn wait in the ring for the receiver, so all of them must fit into the ring.
constexpr std::size_t kMessageBytes = 64;
constexpr int kMaxCalls = 500;

struct Seconds {
  double send = 0, receive = 0, all_reduce = 0;
};

}  // namespace

// These functions are outside the unnamed namespace and are not inlined, so that their names can be
// given to a profiler.
[[gnu::noinline]] void send_many(ProcessGroup& group, std::span<const std::uint8_t> message,
                                 int calls) {
  for (int i = 0; i < calls; ++i) group.send(message, 1);
}
[[gnu::noinline]] void receive_many(ProcessGroup& group, std::span<std::uint8_t> message,
                                    int calls) {
  for (int i = 0; i < calls; ++i) group.recv(message, 0);
}
[[gnu::noinline]] void reduce_many(ProcessGroup& group, std::span<float> data, int calls) {
  for (int i = 0; i < calls; ++i) group.all_reduce(data);
}

namespace {

template <class Body>
double seconds_of(Body body) {
  const auto begin = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void run_rank(ProcessGroup& group, const Setting& setting, std::atomic<int>& turn,
              Seconds& seconds) {
  std::vector<std::uint8_t> message(kMessageBytes);
  const int rank = group.rank();
  for (int round = 0; round < setting.rounds; ++round) {
    turn.wait(1 - rank);
    if (rank == 0) {
      seconds.send += seconds_of([&] { send_many(group, message, setting.calls); });
    } else {
      seconds.receive += seconds_of([&] { receive_many(group, message, setting.calls); });
    }
    turn = 1 - rank;
    turn.notify_one();
  }
  const auto memory = group.allocate_symmetric(setting.bytes);
  group.barrier();
  const double all =
      seconds_of([&] { reduce_many(group, memory.as<float>(), setting.calls * setting.rounds); });
  if (rank == 0) seconds.all_reduce = all;
}

}  // namespace

int main(int argc, char** argv) {
  Setting setting;
  CLI::App app("What one small call costs the rank that makes it.");
  app.add_option("--bytes", setting.bytes, "of an all_reduce, at least 4")
      ->check(CLI::Range(4, 1 << 30))
      ->capture_default_str();
  app.add_option("--calls", setting.calls, "in a turn")
      ->check(CLI::Range(1, kMaxCalls))
      ->capture_default_str();
  app.add_option("--rounds", setting.rounds, "turns")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const auto store = std::make_shared<paceline::MemoryStore>();
  const auto secret = paceline::Secret::generate();
  std::atomic<int> turn = 0;
  Seconds seconds;
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      paceline::InitOptions options;
      options.rendezvous.rank = rank;
      options.rendezvous.world_size = 2;
      options.rendezvous.store = store;
      options.rendezvous.secret = secret;
      options.group.link.transport = paceline::TransportKind::kShm;
      const auto group = paceline::init_process_group(options);
      run_rank(*group, setting, turn, seconds);
    });
  }
  ranks.clear();
  const double nanoseconds = 1e9 / setting.calls / setting.rounds;
  fmt::print("{} bytes: send {:.0f} ns, receive {:.0f} ns; {} bytes: all_reduce {:.0f} ns\n",
             kMessageBytes, seconds.send * nanoseconds, seconds.receive * nanoseconds,
             setting.bytes, seconds.all_reduce * nanoseconds);
}
