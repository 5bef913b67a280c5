// The cost of diagnosis: a record of the flight recorder, a fingerprint, and both in an all-reduce.
//
//   paceline run --nproc-per-node 2 recorder_bench
//   paceline run --backend gloo --nproc-per-node 2 recorder_bench     # or oneccl
//   mpirun -x PACELINE_BACKEND=mpi -np 2 recorder_bench
//
// Records and fingerprints are timed alone, on rank 0. For all-reduces two groups of the same
// processes take turns, round by round: one that records and one that does not. Every group
// compares fingerprints, which cannot be switched off; the comparison's share is its own time
// divided by the time of the call. With a library's backend the ranks compare by meeting in the
// engine before each call: that meeting, a barrier, takes turns with whole calls. A round's figure
// is the mean of its calls on the slower rank.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "paceline/engine/collectives/group/init_process_group.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/telemetry/flight_recorder.h"

#include "benchmarks/spread.h"

namespace paceline::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

// Nanoseconds of one call of `body`, in each of several rounds.
template <class Body>
std::vector<double> time_each(int rounds, int repeats, Body body) {
  std::vector<double> nanoseconds;
  for (int round = -1; round < rounds; ++round) {  // round -1 warms up
    const auto begin = Clock::now();
    for (int i = 0; i < repeats; ++i) body(i);
    const double took = std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
    if (round >= 0) nanoseconds.push_back(took / repeats);
  }
  return nanoseconds;
}

FlightCall some_call() {
  FlightCall call;
  call.dtype = Dtype::kFloat32;
  call.count = 1 << 18;
  return call;
}

void time_records(FlightRecorder& recorder, int rounds) {
  constexpr int kRepeats = 100'000;
  const FlightCall call = some_call();
  const auto blocking = time_each(rounds, kRepeats, [&](int i) {
    recorder.finish(recorder.start(call, static_cast<std::uint32_t>(i)), {});
  });
  const auto asynchronous = time_each(rounds, kRepeats, [&](int i) {
    const FlightTicket ticket = recorder.enter(call);
    recorder.start(ticket, static_cast<std::uint32_t>(i));
    recorder.finish(ticket, {});
  });
  fmt::print("| record of a blocking operation (2 writes) | {} ns |\n", with_spread(blocking));
  fmt::print("| record of an asynchronous one (3 writes) | {} ns |\n", with_spread(asynchronous));
}

void time_fingerprints(int rounds, int world_size) {
  Collective call;
  call.op = Op::kAllReduce;
  call.dtype = Dtype::kFloat32;
  call.count = 1 << 18;
  std::vector<Fingerprint> said(static_cast<std::size_t>(world_size));
  int different = 0;
  const auto took = time_each(rounds, 100'000, [&](int i) {
    const auto own = make_fingerprint(call, static_cast<std::uint32_t>(i), 0, 1);
    for (auto& theirs : said) {
      theirs = own;
      asm volatile("" : "+m"(theirs));  // hides the value from the compiler
      different += theirs == own ? 0 : 1;
    }
  });
  check(different == 0, "a fingerprint differs from itself");
  fmt::print("| fingerprint, made and compared {} times | {} ns |\n", world_size,
             with_spread(took));
}

// Microseconds of a call on the slower rank.
double time_calls(ProcessGroup& group, std::span<float> data, int calls) {
  group.barrier();
  const auto begin = Clock::now();
  for (int i = 0; i < calls; ++i) group.all_reduce(data, ReduceOp::kMax);
  double took = std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / calls;
  group.all_reduce(std::span(&took, 1), ReduceOp::kMax);
  return took;
}

void time_all_reduces(ProcessGroup& silent, ProcessGroup& recording, std::size_t bytes, int calls,
                      int rounds) {
  const auto one = silent.allocate_symmetric(bytes);
  const auto two = recording.allocate_symmetric(bytes);
  std::vector<double> without;
  std::vector<double> with;
  std::vector<double> more;
  for (int round = -1; round < rounds; ++round) {
    const double first = time_calls(silent, one.as<float>(), calls);
    const double second = time_calls(recording, two.as<float>(), calls);
    if (round < 0) continue;
    without.push_back(first);
    with.push_back(second);
    more.push_back((second / first - 1) * 100);
  }
  if (silent.rank() != 0) return;
  fmt::print("| all-reduce of {} bytes, not recorded | {} µs |\n", bytes, with_spread(without));
  fmt::print("| all-reduce of {} bytes, recorded | {} µs |\n", bytes, with_spread(with));
  fmt::print("| difference, pair by pair | {} % |\n", with_spread(more));
}

double time_barriers(ProcessGroup& group, int calls) {
  group.barrier();
  const auto begin = Clock::now();
  for (int i = 0; i < calls; ++i) group.barrier();
  double took = std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / calls;
  group.all_reduce(std::span(&took, 1), ReduceOp::kMax);
  return took;
}

// Measures the time that a library's call loses to the comparison.
void time_meetings(ProcessGroup& group, std::size_t bytes, int rounds) {
  std::vector<float> data(bytes / sizeof(float), 1.0f);
  std::vector<double> meetings;
  std::vector<double> calls;
  std::vector<double> shares;
  for (int round = -1; round < rounds; ++round) {
    const double meeting = time_barriers(group, 1000);
    const double call = time_calls(group, data, 100);
    if (round < 0) continue;
    meetings.push_back(meeting);
    calls.push_back(call);
    shares.push_back(meeting / (call - meeting) * 100);
  }
  if (group.rank() != 0) return;
  fmt::print("| meeting in the engine, in which calls are compared | {} µs |\n",
             with_spread(meetings));
  fmt::print("| all-reduce of {} bytes by {}, ordinary memory | {} µs |\n", bytes, group.backend(),
             with_spread(calls));
  fmt::print("| meeting by what is left of the call, pair by pair | {} % |\n", with_spread(shares));
}

void run(int rounds) {
  ::unsetenv("PACELINE_FLIGHT_DIR");
  const auto silent = init_process_group();
  const std::string directory =
      (std::filesystem::temp_directory_path() / "paceline-recorder-bench").string();
  std::vector<int> all(static_cast<std::size_t>(silent->world_size()));
  std::iota(all.begin(), all.end(), 0);
  GroupOptions options;
  options.recorder = std::make_shared<FlightRecorder>(FlightOptions{
      .directory = directory, .rank = silent->rank(), .world_size = silent->world_size()});
  const auto recording = silent->new_group(all, options);
  if (silent->rank() == 0) {
    fmt::print(
        "{} ranks, backend {}, transport {}, {} rounds, median [min, max]\n\n| what | time |\n"
        "|---|---|\n",
        silent->world_size(), silent->backend(), silent->transport(), rounds);
    time_records(*options.recorder, rounds);
    time_fingerprints(rounds, silent->world_size());
  }
  if (silent->backend() != "paceline") {
    time_meetings(*silent, 1 << 20, rounds);
    return;
  }
  time_all_reduces(*silent, *recording, 1 << 20, 200, rounds);
  time_all_reduces(*silent, *recording, 64, 5000, rounds);
}

}  // namespace
}  // namespace paceline::benchmarks

int main(int argc, char** argv) {
  int rounds = 15;
  CLI::App app("what recording and comparing operations costs");
  app.add_option("--rounds", rounds, "interleaved rounds")->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  try {
    paceline::benchmarks::run(rounds);
  } catch (const std::exception& error) {
    fmt::print(stderr, "recorder_bench: {}\n", error.what());
    return 1;
  }
}
