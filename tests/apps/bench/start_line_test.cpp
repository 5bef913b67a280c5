#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/core/error.h"

#include "apps/bench/contestant/contestant_process.h"
#include "tests/harness/says.h"

namespace paceline::bench {
namespace {

using harness::Says;

using namespace std::chrono_literals;

std::string path_of(const Fd& fd) { return fmt::format("/proc/self/fd/{}", fd.get()); }

// Threads that share a core but assume a core of their own spin in vain, so they repeat fewer
// times.
int times_for(bool own_core) { return own_core ? 20 : 200; }

class StartLineWith : public testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(StartLineWith, no_rank_starts_before_all_have_arrived) {
  const auto [ranks, own_core] = GetParam();
  const int times = times_for(own_core);
  const Fd memory = StartBarrier::make_memory(ranks);
  std::atomic<int> came = 0;
  std::atomic<int> early = 0;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      StartBarrier line(path_of(memory), rank, ranks, own_core);
      for (int time = 1; time <= times; ++time) {
        ++came;
        line.line_up(Deadline::after(60s));
        if (came < time * ranks) ++early;
        line.line_up(Deadline::after(60s));
      }
    });
  }
  threads.clear();
  EXPECT_EQ(early, 0);
}

TEST_P(StartLineWith, everybody_gets_rank_0s_answer) {
  const auto [ranks, own_core] = GetParam();
  const int times = times_for(own_core);
  const Fd memory = StartBarrier::make_memory(ranks);
  std::atomic<int> wrong = 0;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      StartBarrier line(path_of(memory), rank, ranks, own_core);
      for (int time = 0; time < times; ++time) {
        const bool answer = time % 3 == 0;
        if (line.line_up_and_ask(rank == 0 ? answer : !answer, Deadline::after(60s)) != answer)
          ++wrong;
      }
    });
  }
  threads.clear();
  EXPECT_EQ(wrong, 0);
}

INSTANTIATE_TEST_SUITE_P(Ranks, StartLineWith,
                         testing::Combine(testing::Values(1, 2, 3, 5), testing::Bool()));

TEST(StartLineTest, a_missing_rank_is_named) {
  const Fd memory = StartBarrier::make_memory(2);
  StartBarrier line(path_of(memory), 0, 2, false);
  try {
    line.line_up(Deadline::after(50ms));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kTimeout);
    EXPECT_THAT(error.what(), Says("bench.start_line_missed", 0, 1));
  }
}

}  // namespace
}  // namespace paceline::bench
