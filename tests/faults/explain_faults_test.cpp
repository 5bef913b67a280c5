// Ranks that are killed or stopped while they record, and the verdict of `paceline explain` on the
// records of all ranks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "paceline/engine/collectives/flight/explain.h"

#include "tests/harness/fresh_directory.h"
#include "tests/harness/process_ranks.h"
#include "tests/harness/says.h"
#include "tests/harness/shared_counter.h"

namespace paceline {
namespace {

using harness::run_process_ranks;
using harness::Says;
using harness::SharedCounter;
using testing::HasSubstr;
using namespace std::chrono_literals;

class ExplainFaultsTest : public testing::TestWithParam<TransportKind> {
 protected:
  const FreshDirectory directory_;
};

TEST_P(ExplainFaultsTest, a_rank_killed_in_a_collective_is_named_with_what_it_was_in) {
  for (int victim = 0; victim < 3; ++victim) {
    SharedCounter running;
    run_process_ranks(
        3,
        [&](ProcessGroup& group) {
          std::vector<float> data(50'000);
          for (int i = 0;; ++i) {
            if (i == 3) running.add();
            group.all_reduce(std::span(data), ReduceOp::kMax);
          }
          return std::string();
        },
        {.transport = GetParam(), .flight_directory = directory_.path()},
        [&](const std::vector<pid_t>& pids) {
          running.wait_for(3, Deadline::after(20s));
          ::kill(pids[static_cast<std::size_t>(victim)], SIGKILL);
        });
    const auto found = explain(read_flights(directory_.path()).flights);
    EXPECT_EQ(found.verdict, Verdict::kDied) << found.sentence;
    EXPECT_EQ(found.ranks, std::vector<int>{victim}) << found.sentence;
    EXPECT_THAT(found.sentence, HasSubstr("rank " + std::to_string(victim) + " (pid "));
    EXPECT_THAT(found.sentence, HasSubstr("died "));
  }
}

TEST_P(ExplainFaultsTest, a_rank_killed_outside_of_collectives_is_reported_as_such) {
  SharedCounter ready;
  run_process_ranks(
      2,
      [&](ProcessGroup& group) {
        group.barrier();
        ready.add();
        if (group.rank() == 1) ready.wait_for(100, Deadline::after(20s));  // as if it computed
        group.barrier();
        return std::string();
      },
      {.transport = GetParam(), .flight_directory = directory_.path()},
      [&](const std::vector<pid_t>& pids) {
        ready.wait_for(2, Deadline::after(20s));
        ::kill(pids[1], SIGKILL);
      });
  const auto found = explain(read_flights(directory_.path()).flights);
  EXPECT_THAT(found.sentence,
              testing::MatchesRegex("rank 1 \\(pid .* died outside of any operation; it last "
                                    "finished barrier #1; rank 0 waited .* in barrier #2"));
}

TEST_P(ExplainFaultsTest, the_time_out_of_the_others_says_that_the_missing_rank_is_stopped) {
  SharedCounter ready;
  SharedCounter failed;
  const auto results = run_process_ranks(
      3,
      [&](ProcessGroup& group) {
        group.barrier();
        ready.add();
        if (group.rank() == 2) {
          failed.wait_for(2, Deadline::after(20s));
          group.barrier();
        }
        std::vector<float> data(1000);
        const CollectiveOptions options{.timeout = 500ms};
        try {
          ready.wait_for(4, Deadline::after(20s));
          group.all_reduce(std::span(data), ReduceOp::kSum, options);
        } catch (const Error&) {
          failed.add();
          throw;
        }
        return std::string();
      },
      {.transport = GetParam(), .flight_directory = directory_.path()},
      [&](const std::vector<pid_t>& pids) {
        ready.wait_for(3, Deadline::after(20s));
        ::kill(pids[2], SIGSTOP);
        ready.add();
        failed.wait_for(2, Deadline::after(20s));
        ::kill(pids[2], SIGCONT);
      });
  bool timed_out = false;
  for (const std::size_t rank : {0u, 1u}) {
    ASSERT_TRUE(results[rank].threw);
    if (results[rank].code != ErrorCode::kTimeout) continue;
    timed_out = true;
    EXPECT_THAT(
        results[rank].report,
        testing::AllOf(Says("records.never_entered", "rank 2",
                            "all_reduce #2 (float32 x 1000, sum, group world)", "barrier #1"),
                       Says("explain.missing_rank_stopped", "barrier #1")));
  }
  EXPECT_TRUE(timed_out);
}

INSTANTIATE_TEST_SUITE_P(Transports, ExplainFaultsTest,
                         testing::Values(TransportKind::kShm, TransportKind::kTcp),
                         [](const auto& info) {
                           return std::string(info.param == TransportKind::kTcp ? "tcp" : "shm");
                         });

}  // namespace
}  // namespace paceline
