// The cost of AgreedStop for a training step.
//
//   paceline run --nproc-per-node 2 stop_bench
//
// A step is some milliseconds of arithmetic and an all-reduce of 1 MiB, like that of a gradient.
// Rounds of steps that ask afterwards whether to stop take turns with rounds of steps that do not.
// A round's figure is the mean of its steps on the slower rank.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "paceline/engine/collectives/group/agreed_stop.h"
#include "paceline/engine/collectives/group/init_process_group.h"
#include "paceline/engine/collectives/group/process_group.h"

#include "benchmarks/spread.h"

namespace paceline::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

void compute(std::chrono::microseconds time) {
  const auto end = Clock::now() + time;
  while (Clock::now() < end) {
  }
}

// Microseconds per step.
double time_steps(ProcessGroup& group, std::span<float> gradient, std::chrono::microseconds work,
                  int steps, AgreedStop* stop) {
  group.barrier();
  const auto begin = Clock::now();
  for (int i = 0; i < steps; ++i) {
    compute(work);
    group.all_reduce(gradient, ReduceOp::kMax);
    if (stop != nullptr && stop->requested(group)) break;
  }
  double took = std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / steps;
  group.all_reduce(std::span(&took, 1), ReduceOp::kMax);
  return took;
}

void run(int rounds, std::chrono::microseconds work) {
  const auto group = init_process_group();
  AgreedStop stop;
  const auto memory = group->allocate_symmetric(1 << 20);
  const auto gradient = memory.as<float>();
  const int steps = std::max(20, static_cast<int>(400'000 / std::max<long>(100, work.count())));
  std::vector<double> without;
  std::vector<double> with;
  std::vector<double> more;
  for (int round = -1; round < rounds; ++round) {  // round -1 warms up
    const double first = time_steps(*group, gradient, work, steps, nullptr);
    const double second = time_steps(*group, gradient, work, steps, &stop);
    if (round < 0) continue;
    without.push_back(first);
    with.push_back(second);
    more.push_back(second - first);
  }
  if (group->rank() != 0) return;
  fmt::print("{} ranks, transport {}, {} rounds of {} steps, median [min, max]\n\n",
             group->world_size(), group->transport(), rounds, steps);
  fmt::print(
      "| a step, µs | and asks to stop, µs | difference pair by pair, µs |\n|---|---|---|\n");
  fmt::print("| {} | {} | {} |\n", with_spread(without), with_spread(with), with_spread(more));
}

}  // namespace
}  // namespace paceline::benchmarks

int main(int argc, char** argv) {
  int rounds = 15;
  int work = 2000;
  CLI::App app("what AgreedStop costs a training step");
  app.add_option("--rounds", rounds, "interleaved rounds")->check(CLI::Range(1, 1000));
  app.add_option("--work", work, "microseconds of arithmetic a step")
      ->check(CLI::Range(0, 1'000'000));
  CLI11_PARSE(app, argc, argv);
  try {
    paceline::benchmarks::run(rounds, std::chrono::microseconds(work));
  } catch (const std::exception& error) {
    fmt::print(stderr, "stop_bench: {}\n", error.what());
    return 1;
  }
}
