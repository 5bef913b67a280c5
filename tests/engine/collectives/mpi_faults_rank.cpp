// mpi_faults_rank SCENARIO FOLDER: one rank of a fault test with backend mpi, under MPI's launcher
// (mpi_faults_test.sh). It writes "ok" into FOLDER/RANK if everything is correct, else the error.
// It waits for the files of the other ranks and exits without MPI_Finalize(), because that may
// never return after an error, and because the launcher ends all ranks once one has exited.

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include <fmt/format.h>
#include <unistd.h>

#include "paceline/engine/collectives/group/agreed_stop.h"
#include "paceline/engine/collectives/group/init_process_group.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/core/check.h"

#include "tests/harness/wait_until.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

std::size_t count_descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

// The last rank freezes before a call; the others give up at the deadline and name it.
void frozen(ProcessGroup& group) {
  std::vector<std::int64_t> pids(static_cast<std::size_t>(group.world_size()));
  const std::int64_t mine = ::getpid();
  group.all_gather(std::span(pids), std::span(&mine, 1));
  const int last = group.world_size() - 1;
  std::vector<float> data(100'000, 1.0f);
  const auto begin = Clock::now();
  try {
    for (int i = 0; i < 1000; ++i) {
      if (group.rank() == last && i == 3) ::raise(SIGSTOP);
      group.all_reduce(std::span(data), ReduceOp::kMax, {.timeout = 1s, .keep_alive = nullptr});
    }
  } catch (const Error& error) {
    const std::string text = error.what();
    if (group.rank() == 0) {
      std::this_thread::sleep_for(500ms);  // until the deadlines of the other ranks have passed too
      ::kill(static_cast<pid_t>(pids.back()), SIGCONT);
    }
    check(error.code() == ErrorCode::kTimeout || error.code() == ErrorCode::kAborted,
          "another kind of error: {}", text);
    check(group.rank() == last || text.find(fmt::format("rank {}", last)) != text.npos,
          "rank {} is not named: {}", last, text);
    check(text.find("all_reduce #") != text.npos, "the operation is not named: {}", text);
    check(Clock::now() - begin < 15s, "it took too long");
    return;
  }
  fail(ErrorCode::kInvalid, "nobody noticed");
}

// Creates and aborts groups repeatedly, and checks that no descriptor is leaked.
void rounds(ProcessGroup& group) {
  constexpr int kWarmUp = 20, kRounds = 1000;
  std::vector<int> all(static_cast<std::size_t>(group.world_size()));
  for (int rank = 0; rank < group.world_size(); ++rank) all[static_cast<std::size_t>(rank)] = rank;
  std::vector<float> data(1000, 1.0f);
  std::size_t before = 0;
  for (int round = 0; round < kWarmUp + kRounds; ++round) {
    if (round == kWarmUp) before = count_descriptors();
    const auto child = group.new_group(all);
    bool has_failed = false;
    try {
      // Rank 0 may be done with this all-reduce, and abort, while another rank is still in it.
      child->all_reduce(std::span(data), ReduceOp::kMax);
      if (group.rank() == 0) child->abort("enough");
      child->all_reduce(std::span(data), ReduceOp::kMax);
    } catch (const Error& error) {
      has_failed = error.code() == ErrorCode::kAborted;
    }
    check(has_failed, "round {}: an aborted group went on", round);
  }
  check(count_descriptors() <= before + 4, "{} descriptors, {} before", count_descriptors(),
        before);
  check(all_reduce_value(group, 1) == group.world_size(), "the group at the top is broken");
}

// The last rank is asked to stop; all stop after the same step.
void stop(ProcessGroup& group) {
  AgreedStop agreed;
  int steps = 0;
  do {
    if (++steps == 5 && group.rank() + 1 == group.world_size()) ::raise(SIGUSR1);
    group.barrier();
    check(steps < 1000, "nobody stopped");
  } while (!agreed.requested(group));
  check(steps == 5 && agreed.reason().find("SIGUSR1") != std::string::npos,
        "stopped after {} steps for {}", steps, agreed.reason());
}

int run(const std::string& scenario, const std::filesystem::path& folder) {
  const auto group = init_process_group({.group = {.timeout = 20s}});
  std::string result = "ok";
  try {
    check(group->backend() == "mpi" && group->world_size() > 1, "this is no group over MPI");
    if (scenario == "frozen") {
      frozen(*group);
    } else if (scenario == "rounds") {
      rounds(*group);
    } else if (scenario == "stop") {
      stop(*group);
    } else {
      result = "there is no scenario " + scenario;
    }
  } catch (const std::exception& error) {
    result = error.what();
  }
  std::ofstream(folder / std::to_string(group->rank())) << result << std::endl;
  for (int rank = 0; rank < group->world_size(); ++rank) {
    const auto path = folder / std::to_string(rank);
    (void)harness::wait_until([&] { return std::filesystem::exists(path); }, Deadline::after(20s));
  }
  std::_Exit(result == "ok" ? 0 : 1);
}

}  // namespace
}  // namespace paceline

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: mpi_faults_rank SCENARIO FOLDER\n");
    return 2;
  }
  try {
    return paceline::run(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mpi_faults_rank: %s\n", error.what());
    return 1;
  }
}
