// If a rank is stopped at any point in a sequence of collectives, the errors blame that rank, not
// the ranks that wait for it and that other ranks in turn wait for.

#include <functional>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/harness/process_ranks.h"
#include "tests/harness/shared_counter.h"

namespace paceline {
namespace {

using harness::ProcessResult;
using harness::run_process_ranks;
using harness::SharedCounter;
using testing::AnyOf;
using namespace std::chrono_literals;

struct BlameSetting {
  const char* name;
  int world_size;
  TransportKind transport;
  int ranks_per_host;  // 0: all ranks on one host
  std::function<void(ProcessGroup&, std::span<float>, const CollectiveOptions&)> call;
};

void broadcast(ProcessGroup& group, std::span<float> data, const CollectiveOptions& options) {
  group.broadcast(data, 0, options);
}
void all_reduce(ProcessGroup& group, std::span<float> data, const CollectiveOptions& options) {
  group.all_reduce(data, ReduceOp::kMax, options);
}
void barrier(ProcessGroup& group, std::span<float>, const CollectiveOptions& options) {
  group.barrier(options);
}

class BlameTest : public testing::TestWithParam<BlameSetting> {
 protected:
  // Stops rank `stopped` after the time `after`, and continues it once all others have failed.
  // Returns the results of all ranks.
  std::vector<ProcessResult> run(int stopped, std::chrono::microseconds after) const {
    const BlameSetting& setting = GetParam();
    SharedCounter running;
    SharedCounter failed;
    return run_process_ranks(
        setting.world_size,
        [&](ProcessGroup& group) {
          std::vector<float> data(50'000);
          const CollectiveOptions options{.timeout = 600ms};
          try {
            for (int i = 0;; ++i) {
              if (i == 3) running.add();
              setting.call(group, data, options);
            }
          } catch (const Error&) {
            failed.add();
            throw;
          }
          return std::string();
        },
        {.transport = setting.transport,
         .adjust =
             [&](int rank, GroupOptions& options) {
               if (setting.ranks_per_host == 0) return;
               options.link.host = "h" + std::to_string(rank / setting.ranks_per_host);
             }},
        [&](const std::vector<pid_t>& pids) {
          running.wait_for(static_cast<std::uint32_t>(setting.world_size), Deadline::after(20s));
          std::this_thread::sleep_for(after);
          ::kill(pids[static_cast<std::size_t>(stopped)], SIGSTOP);
          failed.wait_for(static_cast<std::uint32_t>(setting.world_size - 1), Deadline::after(20s));
          ::kill(pids[static_cast<std::size_t>(stopped)], SIGCONT);
        });
  }
};

TEST_P(BlameTest, falls_on_the_stopped_rank_alone_and_it_hears_of_that) {
  const int world = GetParam().world_size;
  for (int round = 0; round < world; ++round) {
    const int stopped = world - 1 - round;
    const auto results = run(stopped, 100us + round * 137us);
    for (int rank = 0; rank < world; ++rank) {
      const auto& result = results[static_cast<std::size_t>(rank)];
      ASSERT_TRUE(result.threw);
      EXPECT_THAT(result.code, AnyOf(ErrorCode::kTimeout, ErrorCode::kAborted));
      EXPECT_EQ(result.context.ranks, std::vector{stopped}) << result.report;
    }
    EXPECT_EQ(results[static_cast<std::size_t>(stopped)].code, ErrorCode::kAborted);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Hosts, BlameTest,
    testing::Values(BlameSetting{"two_hosts_broadcast", 4, TransportKind::kAuto, 2, broadcast},
                    BlameSetting{"two_hosts_all_reduce", 4, TransportKind::kAuto, 2, all_reduce},
                    BlameSetting{"two_hosts_barrier", 4, TransportKind::kAuto, 2, barrier},
                    BlameSetting{"sockets_broadcast", 3, TransportKind::kTcp, 0, broadcast},
                    BlameSetting{"sockets_barrier", 3, TransportKind::kTcp, 0, barrier},
                    BlameSetting{"shared_memory_broadcast", 3, TransportKind::kShm, 0, broadcast}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace paceline
