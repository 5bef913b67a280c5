// A rank that dies, freezes or leaves a group during a library's collective causes a typed error on
// every other rank, not a hang. tests/faults has the same tests for Paceline's own backend, and
// mpi_faults_test.sh for MPI, which needs its own launcher.

#include <filesystem>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "paceline/engine/collectives/backends/backend_list.h"
#include "paceline/engine/collectives/group/agreed_stop.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/process_ranks.h"
#include "tests/harness/says.h"
#include "tests/harness/shared_counter.h"
#include "tests/harness/wait_until.h"

namespace paceline {
namespace {

using harness::run_process_ranks;
using harness::Says;
using harness::SharedCounter;
using testing::HasSubstr;
using namespace std::chrono_literals;

// The number of descriptors that a library may open once, at any time.
constexpr std::size_t kSpare = 4;

std::size_t count_descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

class LibraryFault : public testing::TestWithParam<std::string> {};

// Memory that is never freed: after an error a library may still use it (docs/network.md).
std::vector<float>& lasting_data() {
  static std::vector<float> data(1 << 20, 1.0f);
  return data;
}

std::string sum_for_ever(ProcessGroup& group, SharedCounter& running,
                         std::chrono::milliseconds timeout = 20s) {
  auto& data = lasting_data();
  for (int i = 0;; ++i) {
    if (i == 3) running.add();
    group.all_reduce(std::span(data), ReduceOp::kMax, {.timeout = timeout});
  }
}

TEST_P(LibraryFault, every_survivor_of_a_killed_rank_names_it) {
  for (const int world : {2, 3, 4}) {
    for (int victim = 0; victim < world; ++victim) {
      SharedCounter running;
      std::chrono::steady_clock::time_point killed;
      const auto results = run_process_ranks(
          world, [&](ProcessGroup& group) { return sum_for_ever(group, running); },
          {.backend = GetParam()},
          [&](const std::vector<pid_t>& pids) {
            running.wait_for(static_cast<std::uint32_t>(world), Deadline::after(20s));
            killed = std::chrono::steady_clock::now();
            ::kill(pids[static_cast<std::size_t>(victim)], SIGKILL);
          });
      for (int rank = 0; rank < world; ++rank) {
        if (rank == victim) continue;
        const auto& result = results[static_cast<std::size_t>(rank)];
        ASSERT_TRUE(result.threw) << "rank " << rank << " of " << world << ", signal "
                                  << result.signal;
        EXPECT_EQ(result.code, ErrorCode::kPeerLost) << result.report;
        EXPECT_EQ(result.context.ranks, std::vector{victim}) << result.report;
        EXPECT_LT(result.ended - killed, 5s) << result.report;
      }
    }
  }
}

void expect_all_but_one_went_on(const std::vector<harness::ProcessResult>& results, int victim) {
  for (int rank = 0; rank < static_cast<int>(results.size()); ++rank) {
    const auto& result = results[static_cast<std::size_t>(rank)];
    if (rank == victim) continue;
    EXPECT_EQ(result.signal, 0) << "rank " << rank << " without rank " << victim;
    EXPECT_EQ(result.report, "went on") << "rank " << rank << " without rank " << victim;
  }
}

// The library is idle when the rank dies. Therefore ending the group closes the connections to it,
// and another group of the remaining ranks still works.
TEST_P(LibraryFault, a_rank_killed_between_calls_is_named_and_the_survivors_continue) {
  for (int victim = 0; victim < 3; ++victim) {
    SharedCounter resting;
    SharedCounter killed;
    const std::string name = "rank " + std::to_string(victim) + " (";
    const auto results = run_process_ranks(
        3,
        [&](ProcessGroup& group) {
          const auto trio = group.new_group({0, 1, 2});
          const auto pair = group.new_group({(victim + 2) % 3, (victim + 1) % 3});
          const auto sum = [&] { trio->all_reduce(std::span(lasting_data()), ReduceOp::kSum); };
          sum();
          resting.add();
          killed.wait_for(1, Deadline::after(20s));
          expect_error(ErrorCode::kPeerLost, {name}, sum);
          float one = 1;
          pair->all_reduce(std::span(&one, 1), ReduceOp::kSum);
          EXPECT_EQ(one, 2);
          return std::string("went on");
        },
        {.backend = GetParam()},
        [&](const std::vector<pid_t>& pids) {
          resting.wait_for(3, Deadline::after(20s));
          ::kill(pids[static_cast<std::size_t>(victim)], SIGKILL);
          harness::wait_for_the_end_of(pids[static_cast<std::size_t>(victim)],
                                       Deadline::after(20s));
          killed.add();
        });
    expect_all_but_one_went_on(results, victim);
  }
}

// A fault during a call may make the library unusable, also for other groups of the process. Those
// then report it, and no rank hangs or dies.
TEST_P(LibraryFault, after_a_rank_killed_in_a_call_another_group_continues_or_says_why_not) {
  for (const auto op : {ReduceOp::kSum, ReduceOp::kMax}) {
    for (int victim = 0; victim < 3; ++victim) {
      SharedCounter running;
      const auto results = run_process_ranks(
          3,
          [&](ProcessGroup& group) {
            auto trio = group.new_group({2, 0, 1});
            const auto pair = group.new_group({(victim + 2) % 3, (victim + 1) % 3});
            float one = 1;
            if (group.rank() != victim) pair->all_reduce(std::span(&one, 1), ReduceOp::kSum);
            const auto reduce_for_ever = [&] {
              for (int i = 0;; ++i) {
                if (i == 3) running.add();
                trio->all_reduce(std::span(lasting_data()), op);
              }
            };
            const int rank_in_trio = (victim + 1) % 3;
            expect_error(ErrorCode::kPeerLost, {"rank " + std::to_string(rank_in_trio) + " ("},
                         reduce_for_ever);
            trio.reset();
            try {
              pair->all_reduce(std::span(&one, 1), ReduceOp::kSum);
              EXPECT_EQ(one, 4);
            } catch (const Error& error) {
              EXPECT_EQ(GetParam(), "oneccl") << error.what();
              EXPECT_THAT(error.what(), Says("library.unusable"));
            }
            return std::string("went on");
          },
          {.backend = GetParam()},
          [&](const std::vector<pid_t>& pids) {
            running.wait_for(3, Deadline::after(20s));
            ::kill(pids[static_cast<std::size_t>(victim)], SIGKILL);
          });
      expect_all_but_one_went_on(results, victim);
    }
  }
}

TEST_P(LibraryFault, a_stopped_rank_is_a_timeout) {
  SharedCounter running;
  const auto results = run_process_ranks(
      3, [&](ProcessGroup& group) { return sum_for_ever(group, running, 1s); },
      {.backend = GetParam()},
      [&](const std::vector<pid_t>& pids) {
        running.wait_for(3, Deadline::after(20s));
        ::kill(pids[1], SIGSTOP);
        std::this_thread::sleep_for(3s);
        ::kill(pids[1], SIGCONT);
      });
  for (const std::size_t rank : {0, 2}) {
    ASSERT_TRUE(results[rank].threw);
    EXPECT_TRUE(results[rank].code == ErrorCode::kTimeout ||
                results[rank].code == ErrorCode::kAborted)
        << results[rank].report;
  }
}

TEST_P(LibraryFault, abort_also_ends_this_ranks_operations) {
  run_process_ranks(
      2,
      [&](ProcessGroup& group) {
        auto& data = lasting_data();
        const auto begin = std::chrono::steady_clock::now();
        std::vector<WorkPtr> works;
        for (int i = 0; i < 200; ++i)
          works.push_back(group.all_reduce(std::span(data), ReduceOp::kSum, {.async_op = true}));
        const auto go_on = [&] {
          works.front()->wait();
          if (group.rank() == 0) group.abort("enough");
          works.back()->wait();
        };
        EXPECT_THROW(go_on(), Error);
        EXPECT_LT(std::chrono::steady_clock::now() - begin, 15s);
        return std::string();
      },
      {.backend = GetParam()});
}

// At any moment of a long call, even while a message into the library's own memory is half read.
TEST_P(LibraryFault, abort_ends_a_call_in_any_part_of_it) {
  const int rounds = GetParam() == "gloo" ? 300 : 20;
  const auto results = run_process_ranks(
      2,
      [&](ProcessGroup& group) {
        std::mt19937 random(static_cast<std::uint32_t>(rounds));
        std::uniform_int_distribution<int> microseconds(0, 4000);
        const auto reduce_for_ever = [](ProcessGroup& child) {
          while (true)
            child.all_reduce(std::span(lasting_data()), ReduceOp::kMax, {.timeout = 60s});
        };
        for (int round = 0; round < rounds; ++round) {
          const auto child = group.new_group({0, 1});
          std::jthread aborting;
          if (group.rank() == 0) {
            aborting = std::jthread([&, after = std::chrono::microseconds(microseconds(random))] {
              std::this_thread::sleep_for(after);
              child->abort("enough");
            });
          }
          const auto begin = std::chrono::steady_clock::now();
          expect_error(ErrorCode::kAborted, {"enough"}, [&] { reduce_for_ever(*child); });
          EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s) << "round " << round;
        }
        return std::string("went on");
      },
      {.backend = GetParam(), .watchdog = 240s});
  for (const auto& result : results) EXPECT_EQ(result.report, "went on");
}

TEST_P(LibraryFault, an_aborted_group_is_followed_by_a_good_one_and_leaves_nothing) {
  constexpr int kWarmUp = 10;
  const int rounds = GetParam() == "gloo" ? 200 : 100;
  const auto results = run_process_ranks(
      2,
      [&](ProcessGroup& group) {
        const auto data = std::span(lasting_data()).first(1000);
        std::size_t before = 0;
        for (int round = 0; round < kWarmUp + rounds; ++round) {
          if (round == kWarmUp) before = count_descriptors();
          const auto child = group.new_group({1, 0});
          // Rank 1 may still be in the first all-reduce when rank 0 aborts.
          const auto go_on = [&] {
            child->all_reduce(data, ReduceOp::kMax);
            if (group.rank() == 0) child->abort("enough");
            child->all_reduce(data, ReduceOp::kMax);
          };
          EXPECT_THROW(go_on(), Error);
        }
        // A thread of the library may close a socket a little later.
        EXPECT_TRUE(harness::wait_until([&] { return count_descriptors() <= before + kSpare; },
                                        Deadline::after(10s)))
            << count_descriptors() << ", " << before << " before";
        return std::to_string(all_reduce_value(group, 1));
      },
      {.backend = GetParam(), .watchdog = 240s});
  for (const auto& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.report;
    EXPECT_EQ(result.report, "2");
  }
}

// One rank is asked to stop; all stop after the same step.
TEST_P(LibraryFault, a_stop_is_agreed_on) {
  SharedCounter running;
  const auto results = run_process_ranks(
      3,
      [&](ProcessGroup& group) {
        AgreedStop stop;
        std::vector<float> gradient(10'000, 1.0f);
        int steps = 0;
        do {
          group.all_reduce(std::span(gradient), ReduceOp::kMax);
          if (++steps == 3) running.add();
        } while (!stop.requested(group));
        return std::to_string(steps) + " " + stop.reason();
      },
      {.backend = GetParam()},
      [&](const std::vector<pid_t>& pids) {
        running.wait_for(3, Deadline::after(30s));
        ::kill(pids[2], SIGUSR1);
      });
  for (const auto& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.report;
    EXPECT_THAT(result.report, HasSubstr("SIGUSR1"));
    EXPECT_EQ(result.report, results[0].report);
  }
}

std::vector<std::string> libraries_of_this_build() {
  std::vector<std::string> names;
  for (const char* name : {"gloo", "oneccl"}) {
    if (is_backend_available(name)) names.emplace_back(name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Libraries, LibraryFault, testing::ValuesIn(libraries_of_this_build()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace paceline
