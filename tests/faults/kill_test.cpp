// kill -9 of a rank in the middle of collectives: every survivor gets at once a typed error that
// names the dead rank.

#include <algorithm>
#include <iostream>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include "paceline/engine/transport/wire.h"

#include "tests/harness/process_ranks.h"
#include "tests/harness/random_seed.h"
#include "tests/harness/shared_counter.h"
#include "tests/harness/ucx_ranks.h"

namespace paceline {
namespace {

using harness::ProcessResult;
using harness::run_process_ranks;
using harness::SharedCounter;
using testing::AnyOf;
using testing::ElementsAre;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kKillLimit = 5s;  // on an idle machine it takes milliseconds

struct KillSetting {
  TransportKind transport;
  int world;
  std::string over = {};  // the transports that UCX may use
  int tcp_streams = 1;
};

std::string name_of(const testing::TestParamInfo<KillSetting>& info) {
  return std::string(name_of(info.param.transport)) + info.param.over + "_" +
         std::to_string(info.param.world) +
         (info.param.tcp_streams > 1 ? "_streams" + std::to_string(info.param.tcp_streams) : "");
}

std::vector<KillSetting> settings() {
  std::vector<KillSetting> all = {{TransportKind::kTcp, 3, "", 3}};
  for (const int world : {2, 3, 4}) {
    all.push_back({TransportKind::kShm, world});
    all.push_back({TransportKind::kTcp, world});
    if (!harness::can_use_ucx()) continue;
    all.push_back({TransportKind::kUcx, world, "tcp"});
    if (harness::can_use_ucx_posix()) all.push_back({TransportKind::kUcx, world, "posix"});
  }
  return all;
}

enum class Load { kSmall, kStaged, kSymmetric, kMessages };

// Sends large messages around the ring of ranks until the group fails. Every message must arrive
// with the right contents.
std::string exchange_for_ever(ProcessGroup& group, SharedCounter& running) {
  const int next = (group.rank() + 1) % group.world_size();
  const int previous = (group.rank() + group.world_size() - 1) % group.world_size();
  std::vector<int> mine(1 << 19), theirs(mine.size());
  for (int i = 0;; ++i) {
    if (i == 3) running.add();
    std::fill(mine.begin(), mine.end(), i);
    const auto sent = group.isend(std::span(mine), next);
    group.recv(std::span(theirs), previous);
    EXPECT_EQ(std::count(theirs.begin(), theirs.end(), i), std::ssize(theirs));
    sent->wait();
  }
}

// Repeats all-reduces, or exchanges messages, until the group fails.
std::string sum_for_ever(ProcessGroup& group, Load load, SharedCounter& running) {
  if (load == Load::kMessages) return exchange_for_ever(group, running);
  const std::size_t count = load == Load::kSmall ? 256 : 1 << 20;
  std::vector<float> plain(count, 1.0f);
  std::span<float> data(plain);
  SymmetricBuffer symmetric;
  if (load == Load::kSymmetric) {
    symmetric = group.allocate_symmetric(count * sizeof(float));
    data = symmetric.as<float>();
  }
  for (int i = 0;; ++i) {
    if (i == 3) running.add();
    group.all_reduce(data, ReduceOp::kMax);
  }
}

class KillTest : public testing::TestWithParam<KillSetting> {
 protected:
  const harness::UcxTransports transports_{GetParam().over.empty() ? "all" : GetParam().over};

  // Kills `victim`, and checks the error of each survivor and how long it took to notice.
  void kill_one(int victim, Load load) {
    const auto [transport, world, over, tcp_streams] = GetParam();
    SharedCounter running;
    Clock::time_point killed;
    const auto results = run_process_ranks(
        world, [&](ProcessGroup& group) { return sum_for_ever(group, load, running); },
        {.transport = transport, .tcp_streams = tcp_streams},
        [&](const std::vector<pid_t>& pids) {
          running.wait_for(static_cast<std::uint32_t>(world), Deadline::after(20s));
          // The kill may hit any moment of a collective.
          std::this_thread::sleep_for(std::chrono::microseconds(random_() % 3000));
          killed = Clock::now();
          ::kill(pids[static_cast<std::size_t>(victim)], SIGKILL);
        });
    for (int rank = 0; rank < world; ++rank) {
      if (rank != victim) expect_survivor(rank, victim, results, killed);
    }
  }

  void expect_survivor(int rank, int victim, const std::vector<ProcessResult>& results,
                       Clock::time_point killed) {
    const auto& result = results[static_cast<std::size_t>(rank)];
    ASSERT_TRUE(result.threw) << "rank " << rank << " ended without an error";
    EXPECT_TRUE(result.code == ErrorCode::kPeerLost || result.code == ErrorCode::kAborted)
        << result.report;
    EXPECT_EQ(result.context.ranks, std::vector{victim}) << result.report;
    const auto took = result.ended - killed;
    EXPECT_LT(took, kKillLimit) << result.report;
    times_ms().push_back(std::chrono::duration<double, std::milli>(took).count());
  }

  static std::vector<double>& times_ms() {
    static std::vector<double> times;
    return times;
  }

  static void TearDownTestSuite() {
    auto& times = times_ms();
    std::sort(times.begin(), times.end());
    if (times.empty()) return;
    const auto at = [&](double part) {
      return times[static_cast<std::size_t>(part * static_cast<double>(times.size() - 1))];
    };
    std::cout << "survivors noticed a kill " << times.size() << " times: p50 " << at(0.5)
              << " ms, p99 " << at(0.99) << " ms, most " << times.back() << " ms\n";
  }

  std::mt19937 random_{harness::random_seed()};
};

TEST_P(KillTest, every_survivor_of_a_killed_rank_names_it_at_once) {
  for (const Load load : {Load::kSmall, Load::kStaged, Load::kSymmetric, Load::kMessages}) {
    for (int victim = 0; victim < GetParam().world; ++victim) {
      kill_one(victim, load);
      kill_one(victim, load);
    }
  }
}

TEST_P(KillTest, two_ranks_killed_at_once_are_an_error_too) {
  const auto [transport, world, over, tcp_streams] = GetParam();
  if (world == 2) return;  // no rank survives
  SharedCounter running;
  const auto results = run_process_ranks(
      world, [&](ProcessGroup& group) { return sum_for_ever(group, Load::kStaged, running); },
      {.transport = transport, .tcp_streams = tcp_streams},
      [&](const std::vector<pid_t>& pids) {
        running.wait_for(static_cast<std::uint32_t>(world), Deadline::after(20s));
        ::kill(pids[0], SIGKILL);
        ::kill(pids[1], SIGKILL);
      });
  for (std::size_t rank = 2; rank < results.size(); ++rank) {
    ASSERT_TRUE(results[rank].threw);
    EXPECT_THAT(results[rank].context.ranks, ElementsAre(AnyOf(0, 1))) << results[rank].report;
  }
}

// A survivor that computes while the others fail and leave still learns which rank died.
TEST_P(KillTest, a_survivor_that_arrives_late_names_the_dead_rank_and_not_another_survivor) {
  const auto [transport, world, over, tcp_streams] = GetParam();
  if (world == 2) return;  // there is no other survivor
  const int late = 1;
  const int victim = world - 1;
  SharedCounter running;
  SharedCounter gone;
  const auto results = run_process_ranks(
      world,
      [&](ProcessGroup& group) {
        if (group.rank() != late) return sum_for_ever(group, Load::kSmall, running);
        std::vector<float> data(256);
        for (int i = 0; i < 4; ++i) group.all_reduce(std::span(data), ReduceOp::kMax);
        gone.wait_for(1, Deadline::after(20s));
        // The dead rank may have contributed to the next all-reduce, but not to the one after it.
        for (int i = 0; i < 2; ++i) group.all_reduce(std::span(data), ReduceOp::kMax);
        return std::string("noticed nothing");
      },
      {.transport = transport, .tcp_streams = tcp_streams},
      [&](const std::vector<pid_t>& pids) {
        running.wait_for(static_cast<std::uint32_t>(world - 1), Deadline::after(20s));
        ::kill(pids[static_cast<std::size_t>(victim)], SIGKILL);
        for (int rank = 0; rank < world; ++rank) {
          if (rank == late) continue;
          siginfo_t info;
          waitid(P_PID, static_cast<id_t>(pids[static_cast<std::size_t>(rank)]), &info,
                 WEXITED | WNOWAIT);
        }
        gone.add();
      });
  const auto& result = results[static_cast<std::size_t>(late)];
  ASSERT_TRUE(result.threw) << result.report;
  EXPECT_EQ(result.context.ranks, std::vector{victim}) << result.report;
}

INSTANTIATE_TEST_SUITE_P(Transports, KillTest, testing::ValuesIn(settings()),
                         [](const auto& info) { return name_of(info); });

}  // namespace
}  // namespace paceline
