// The cost of an asynchronous all-reduce for the computation that runs at the same time.
//
//   paceline run --nproc-per-node 2 overlap_bench
//
// Each rank has one core, which must do the computation and its part of the all-reduce, one after
// the other. So with C seconds for the computation alone and R seconds for a blocking all-reduce
// alone, both together cannot take less than max(C, R) and need not take more than C + R. The
// output is (C + R) / together: at 1 the computation loses nothing; above 1, one of the two works
// while the other waits. The three times are measured in turns, round by round, on the slower rank;
// buffers are written before each call.

#include <chrono>
#include <cstdio>
#include <numeric>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "paceline/engine/collectives/group/init_process_group.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/core/check.h"

#include "benchmarks/spread.h"

namespace paceline::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

// Multiplications and additions in the cache: a matrix product puts the same load on the core. The
// elements stay near 1.
class Computation {
 public:
  void run(long passes) {
    for (long pass = 0; pass < passes; ++pass) {
      for (float& value : values_) value = value * 0.999f + 0.001f;
      asm volatile("" : : "r"(values_.data()) : "memory");
    }
  }
  // The number of passes that take about this time.
  long passes_in(std::chrono::duration<double> time) {
    long passes = 1000;
    for (;;) {
      const auto begin = Clock::now();
      run(passes);
      const std::chrono::duration<double> took = Clock::now() - begin;
      if (took > time / 4) return static_cast<long>(static_cast<double>(passes) * (time / took));
      passes *= 2;
    }
  }

 private:
  std::vector<float> values_ = std::vector<float>(4096, 2.0f);
};

class Bench {
 public:
  Bench(ProcessGroup& group, std::size_t bytes)
      : group_(group), buffer_(group.allocate_symmetric(bytes)) {}

  // The seconds of `body` on the slower rank.
  template <class Body>
  double time(Body body) {
    const auto data = buffer_.as<float>();
    std::fill(data.begin(), data.end(), 1.0f);
    group_.barrier();
    const auto begin = Clock::now();
    body();
    std::vector<double> seconds = {std::chrono::duration<double>(Clock::now() - begin).count()};
    group_.all_reduce(std::span(seconds), ReduceOp::kMax);
    return seconds[0];
  }
  void reduce() { group_.all_reduce(buffer_.as<float>()); }
  WorkPtr start_reduce() {
    return group_.all_reduce(buffer_.as<float>(), ReduceOp::kSum, {.async_op = true});
  }

 private:
  ProcessGroup& group_;
  SymmetricBuffer buffer_;
};

void run(ProcessGroup& group, std::size_t bytes, int rounds) {
  Bench bench(group, bytes);
  Computation computation;
  std::vector<double> most = {static_cast<double>(computation.passes_in(
      std::chrono::duration<double>(4 * bench.time([&] { bench.reduce(); }))))};
  group.all_reduce(std::span(most), ReduceOp::kMax);
  const auto passes = static_cast<long>(most[0]);
  std::vector<double> alone, reduces, together, shares;
  for (int round = -1; round < rounds; ++round) {  // round -1 warms up
    const double c = bench.time([&] { computation.run(passes); });
    const double r = bench.time([&] { bench.reduce(); });
    const double t = bench.time([&] {
      const WorkPtr work = bench.start_reduce();
      computation.run(passes);
      work->wait();
    });
    if (round < 0) continue;
    alone.push_back(c * 1e3);
    reduces.push_back(r * 1e3);
    together.push_back(t * 1e3);
    shares.push_back((c + r) / t);
  }
  if (group.rank() != 0) return;
  fmt::print("{} ranks, {}, {} rounds, {} MB; milliseconds, median [least, most]\n",
             group.world_size(), group.transport(), rounds, bytes >> 20);
  fmt::print("| computation alone | {} |\n", with_spread(alone));
  fmt::print("| blocking all-reduce | {} |\n", with_spread(reduces));
  fmt::print("| asynchronous all-reduce beside the computation | {} |\n", with_spread(together));
  fmt::print("| share of the limit, (first + second) / third | {} |\n", with_spread(shares));
}

}  // namespace
}  // namespace paceline::benchmarks

int main(int argc, char** argv) {
  using namespace paceline;
  CLI::App app("What an asynchronous all-reduce costs the computation beside it.");
  int rounds = 15, megabytes = 64;
  app.add_option("--rounds", rounds, "Rounds of each measurement")->check(CLI::Range(1, 1000));
  app.add_option("--megabytes", megabytes, "Size of the buffer")->check(CLI::Range(1, 4096));
  CLI11_PARSE(app, argc, argv);
  try {
    const auto group = init_process_group();
    check(group->world_size() > 1, "start it as 2 ranks: paceline run --nproc-per-node 2 {}",
          argv[0]);
    benchmarks::run(*group, static_cast<std::size_t>(megabytes) << 20, rounds);
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "overlap_bench: {}\n", error.what());
    return 1;
  }
}
