// A rank that dies or stops in the middle of Gloo's collective: a typed error on every survivor,
// not a hang. tests/faults has the same for Paceline's own backend.

#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/harness/process_ranks.h"
#include "tests/harness/shared_counter.h"

namespace paceline {
namespace {

using harness::run_process_ranks;
using harness::SharedCounter;
using testing::HasSubstr;
using namespace std::chrono_literals;

std::string sum_for_ever(ProcessGroup& group, SharedCounter& running) {
  std::vector<float> data(1 << 20, 1.0f);
  for (int i = 0;; ++i) {
    if (i == 3) running.add();
    group.all_reduce(std::span(data), ReduceOp::kMax);
  }
}

TEST(GlooFault, every_survivor_of_a_killed_rank_names_it) {
  for (const int world : {2, 3, 4}) {
    for (int victim = 0; victim < world; ++victim) {
      SharedCounter running;
      std::chrono::steady_clock::time_point killed;
      const auto results = run_process_ranks(
          world, [&](ProcessGroup& group) { return sum_for_ever(group, running); },
          {.backend = "gloo"},
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
        EXPECT_THAT(result.report, HasSubstr("rank " + std::to_string(victim) + " ("));
        EXPECT_LT(result.ended - killed, 5s) << result.report;
      }
    }
  }
}

TEST(GlooFault, a_stopped_rank_is_a_timeout) {
  SharedCounter running;
  const auto results = run_process_ranks(
      3, [&](ProcessGroup& group) { return sum_for_ever(group, running); },
      {.backend = "gloo", .group_timeout = 1s},
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

TEST(GlooFault, abort_ends_what_is_under_way_in_this_rank_too) {
  run_process_ranks(2,
                    [&](ProcessGroup& group) {
                      std::vector<float> data(1 << 20, 1.0f);
                      const auto begin = std::chrono::steady_clock::now();
                      std::vector<WorkPtr> works;
                      for (int i = 0; i < 200; ++i)
                        works.push_back(group.all_reduce_async(std::span(data)));
                      works.front()->wait();
                      if (group.rank() == 0) group.abort("enough");
                      EXPECT_THROW(works.back()->wait(), Error);
                      EXPECT_LT(std::chrono::steady_clock::now() - begin, 15s);
                      return std::string();
                    },
                    {.backend = "gloo"});
}

}  // namespace
}  // namespace paceline
