// SIGSTOP of a rank: the others give up at their deadline and report which rank they waited for;
// that rank gets an error when it continues.

#include <gtest/gtest.h>
#include <signal.h>

#include "paceline/engine/transport/wire.h"

#include "tests/harness/process_ranks.h"
#include "tests/harness/shared_counter.h"
#include "tests/harness/ucx_ranks.h"

namespace paceline {
namespace {

using harness::run_process_ranks;
using harness::SharedCounter;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kTimeout = 500ms;

class StopTest : public testing::TestWithParam<std::tuple<TransportKind, int>> {};

TEST_P(StopTest, the_others_time_out_naming_the_stopped_rank_which_is_told_when_it_continues) {
  const auto [transport, world] = GetParam();
  const int stopped = world - 1;
  SharedCounter running;
  SharedCounter failed;
  Clock::time_point begin;
  const auto results = run_process_ranks(
      world,
      [&](ProcessGroup& group) {
        std::vector<float> data(100'000);
        // The group itself needs a longer time-out: on few cores it takes longer to form than a
        // collective.
        const CollectiveOptions options{.timeout = kTimeout};
        try {
          for (int i = 0;; ++i) {
            if (i == 3) running.add();
            group.all_reduce(std::span(data), ReduceOp::kMax, options);
          }
        } catch (const Error&) {
          failed.add();
          throw;
        }
        return std::string();
      },
      {.transport = transport},
      [&](const std::vector<pid_t>& pids) {
        running.wait_for(static_cast<std::uint32_t>(world), Deadline::after(20s));
        begin = Clock::now();
        ::kill(pids[static_cast<std::size_t>(stopped)], SIGSTOP);
        failed.wait_for(static_cast<std::uint32_t>(world - 1), Deadline::after(20s));
        ::kill(pids[static_cast<std::size_t>(stopped)], SIGCONT);
      });
  for (int rank = 0; rank < world; ++rank) {
    const auto& result = results[static_cast<std::size_t>(rank)];
    ASSERT_TRUE(result.threw) << "rank " << rank;
    if (rank == stopped) continue;
    EXPECT_TRUE(result.code == ErrorCode::kTimeout || result.code == ErrorCode::kAborted)
        << result.report;
    EXPECT_NE(result.report.find("timed out"), std::string::npos) << result.report;
    EXPECT_NE(result.report.find("rank " + std::to_string(stopped) + " ("), std::string::npos)
        << result.report;
    EXPECT_GE(result.ended - begin, kTimeout - 50ms);
    EXPECT_LT(result.ended - begin, kTimeout + 10s);
  }
  const auto& victim = results[static_cast<std::size_t>(stopped)];
  EXPECT_TRUE(victim.code == ErrorCode::kAborted || victim.code == ErrorCode::kTimeout)
      << victim.report;
}

INSTANTIATE_TEST_SUITE_P(Transports, StopTest,
                         testing::Combine(testing::ValuesIn(harness::and_ucx(
                                              {TransportKind::kShm, TransportKind::kTcp})),
                                          testing::Values(2, 3, 4)),
                         [](const auto& info) {
                           return std::string(name_of(std::get<0>(info.param))) + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace paceline
