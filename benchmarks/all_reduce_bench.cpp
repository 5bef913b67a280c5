// How long an all-reduce of float32 takes on one machine, side by side with Open MPI.
//
//   mpirun -np 2 all_reduce_bench                        with the peer
//   paceline run --nproc-per-node 2 all_reduce_bench     without
//
// Three contestants: Paceline in symmetric memory (where gradients live), Paceline in ordinary
// memory, MPI_Allreduce in place in ordinary memory. They take turns, round by round, in the same
// processes. Before every call each rank writes its whole buffer, as a backward pass does, because
// reducing an untouched buffer flatters everybody. Order of one call: barrier, write, barrier,
// timed call; its time is that of the slowest rank. A round's figure is the median of its calls.
// Every sum is checked.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "paceline/collectives/init.h"
#include "paceline/core/check.h"

#include "benchmarks/mpi_peer.h"
#include "benchmarks/spread.h"

namespace paceline::benchmarks {
namespace {

struct Options {
  int rounds = 6;
  std::size_t min_bytes = 4 << 10;
  std::size_t max_bytes = 64 << 20;
};

struct Contestant {
  std::string name;
  std::span<float> memory;
  std::function<void(std::span<float>)> all_reduce;
};

std::string size_text(std::size_t bytes) {
  return bytes < (1 << 20) ? fmt::format("{} KB", bytes >> 10) : fmt::format("{} MB", bytes >> 20);
}

// Small whole numbers, whose sums are exact.
float element(int rank, int call, std::size_t index) {
  return static_cast<float>((index + static_cast<std::size_t>(call)) % 61) +
         static_cast<float>(rank);
}

float expected_sum(int world_size, int call, std::size_t index) {
  float sum = 0;
  for (int rank = 0; rank < world_size; ++rank) sum += element(rank, call, index);
  return sum;
}

void write(std::span<float> buffer, int rank, int call) {
  for (std::size_t i = 0; i < buffer.size(); ++i) buffer[i] = element(rank, call, i);
}

void require_sums(const Contestant& contestant, std::span<const float> buffer, int world_size,
                  int call) {
  for (std::size_t i = 0; i < buffer.size(); ++i) {
    const float expected = expected_sum(world_size, call, i);
    check(buffer[i] == expected, "{}: element {} of {} is {}, not {}", contestant.name, i,
          buffer.size(), buffer[i], expected);
  }
}

// Seconds of each call on the slowest rank.
std::vector<double> time_calls(ProcessGroup& group, const Contestant& contestant, std::size_t count,
                               int calls) {
  const auto buffer = contestant.memory.first(count);
  std::vector<double> seconds(static_cast<std::size_t>(calls));
  for (int call = 0; call < calls; ++call) {
    group.barrier();
    write(buffer, group.rank(), call);
    group.barrier();
    const auto begin = std::chrono::steady_clock::now();
    contestant.all_reduce(buffer);
    seconds[static_cast<std::size_t>(call)] =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (call == 0 || call + 1 == calls) require_sums(contestant, buffer, group.world_size(), call);
  }
  group.all_reduce(std::span(seconds), ReduceOp::kMax);
  return seconds;
}

int calls_per_round(std::size_t bytes) {
  constexpr std::size_t kBytesPerRound = 64 << 20;
  return static_cast<int>(std::clamp<std::size_t>(kBytesPerRound / bytes, 4, 200));
}

std::vector<double> ratios(const std::vector<double>& of, const std::vector<double>& to) {
  std::vector<double> result;
  for (std::size_t i = 0; i < of.size(); ++i) result.push_back(of[i] / to[i]);
  return result;
}

std::string row(std::size_t bytes, const std::vector<std::vector<double>>& microseconds) {
  std::string text = fmt::format("| {} |", size_text(bytes));
  for (const auto& rounds : microseconds) text += fmt::format(" {:.1f} |", median(rounds));
  for (std::size_t i = 0; microseconds.size() == 3 && i < 2; ++i)
    text += fmt::format(" {} |", with_spread(ratios(microseconds[2], microseconds[i])));
  return text;
}

void print_heading(const ProcessGroup& group, const MpiPeerOrReason& mpi, const Options& options) {
  fmt::print("all-reduce, float32 sum, {} ranks, transport {}, median of {} interleaved rounds\n",
             group.world_size(), group.transport(), options.rounds);
  if (mpi.peer) {
    fmt::print("peer: {}, MPI_Allreduce in place; ratio = {} / Paceline, median [min, max]\n\n",
               mpi.peer->version(), "Open MPI");
    fmt::print(
        "| size | Paceline, symmetric, µs | Paceline, ordinary, µs | Open MPI, µs | ratio, "
        "symmetric "
        "| ratio, ordinary |\n|---|---|---|---|---|---|\n");
  } else {
    fmt::print("no peer: {}\n\n", mpi.reason);
    fmt::print("| size | Paceline, symmetric, µs | Paceline, ordinary, µs |\n|---|---|---|\n");
  }
}

void run(const Options& options) {
  const auto group = init_process_group();
  const auto mpi = start_mpi_peer(group->world_size());
  const auto symmetric = group->allocate_symmetric(options.max_bytes);
  std::vector<float> ordinary(options.max_bytes / sizeof(float));
  const auto paceline = [&](std::span<float> buffer) { group->all_reduce(buffer); };
  std::vector<Contestant> contestants{{"paceline, symmetric", symmetric.as<float>(), paceline},
                                      {"paceline, ordinary", ordinary, paceline}};
  if (mpi.peer) {
    contestants.push_back(
        {"open mpi", ordinary, [&](std::span<float> buffer) { mpi.peer->all_reduce(buffer); }});
  }
  if (group->rank() == 0) print_heading(*group, mpi, options);
  for (std::size_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes *= 4) {
    std::vector<std::vector<double>> microseconds(contestants.size());
    for (int round = -1; round < options.rounds; ++round) {  // round -1 warms up
      for (std::size_t i = 0; i < contestants.size(); ++i) {
        const auto seconds =
            time_calls(*group, contestants[i], bytes / sizeof(float), calls_per_round(bytes));
        if (round >= 0) microseconds[i].push_back(median(seconds) * 1e6);
      }
    }
    if (group->rank() == 0) {
      fmt::print("{}\n", row(bytes, microseconds));
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace paceline::benchmarks

int main(int argc, char** argv) {
  paceline::benchmarks::Options options;
  CLI::App app("all-reduce on one machine, side by side with Open MPI");
  app.add_option("--rounds", options.rounds, "interleaved rounds")->check(CLI::Range(1, 1000));
  app.add_option("--min-bytes", options.min_bytes, "smallest buffer")
      ->check(CLI::Range(std::size_t{4}, std::size_t{1} << 30));
  app.add_option("--max-bytes", options.max_bytes, "largest buffer")
      ->check(CLI::Range(std::size_t{4}, std::size_t{1} << 30));
  CLI11_PARSE(app, argc, argv);
  try {
    paceline::benchmarks::run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "all_reduce_bench: {}\n", error.what());
    return 1;
  }
}
