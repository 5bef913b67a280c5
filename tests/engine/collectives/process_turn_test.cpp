#include <atomic>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/collectives/backends/blocking_calls.h"

#include "tests/harness/asleep.h"
#include "tests/harness/expect_error.h"
#include "tests/harness/process_ranks.h"
#include "tests/harness/random_seed.h"
#include "tests/harness/raw_mesh.h"

namespace paceline {
namespace {

using harness::make_raw_mesh;
using harness::run_process_ranks;
using namespace std::chrono_literals;

constexpr int kTurns = 200;

// Like a library's blocking collective, the barrier returns only when all ranks are inside.
void take_many(ProcessGroup& group, std::vector<int> world_ranks, std::atomic<int>& inside,
               unsigned seed) {
  // This mesh has rank 0, so this rank must come first in world_ranks.
  const auto raw = make_raw_mesh();
  std::swap(world_ranks.front(), world_ranks[static_cast<std::size_t>(group.rank())]);
  std::mt19937 random(seed);
  const Agree agree = [&](bool mine) {
    std::uint8_t all = mine ? 1 : 0;
    group.all_reduce(std::span(&all, 1), ReduceOp::kMin);
    return all == 1;
  };
  for (int i = 0; i < kTurns; ++i) {
    if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    group.barrier();
    const auto turn = take_turns(agree, world_ranks, *raw.mesh, Deadline::after(20s), "a call");
    EXPECT_EQ(inside.fetch_add(1), 0);
    group.barrier();
    inside.fetch_sub(1);
  }
}

TEST(ProcessTurn, groups_of_the_same_processes_take_turns_in_any_order) {
  const std::vector<std::vector<int>> all_members = {{0, 1}, {2, 1}, {2, 0}, {1, 2, 0}, {0, 1, 2}};
  const auto results = run_process_ranks(3, [&](ProcessGroup& world) {
    std::vector<std::shared_ptr<ProcessGroup>> groups;
    for (const auto& members : all_members) groups.push_back(world.new_group(members));
    std::atomic<int> inside{0};
    {
      std::vector<std::jthread> threads;
      for (std::size_t i = 0; i < groups.size(); ++i) {
        if (!groups[i]->is_member()) continue;
        threads.emplace_back([&, i] {
          take_many(*groups[i], all_members[i], inside,
                    harness::random_seed() + static_cast<unsigned>(world.rank()) * 100 +
                        static_cast<unsigned>(i));
        });
      }
    }
    return std::string("done");
  });
  for (const auto& result : results) EXPECT_EQ(result.report, "done");
}

TEST(ProcessTurn, a_turn_that_is_never_given_back_is_a_timeout) {
  const auto raw = make_raw_mesh();
  const auto other = ProcessTurn::take(0ns);
  ASSERT_TRUE(other);
  const Agree agree = [](bool mine) { return mine; };
  expect_error(ErrorCode::kTimeout, {"another group of this process", "is inside the library"},
               [&] {
                 take_turns(agree, {0, 1}, *raw.mesh, Deadline::after(100ms), "all_reduce");
               });
}

TEST(ProcessTurn, a_peer_that_dies_ends_the_wait) {
  auto raw = make_raw_mesh();
  const auto other = ProcessTurn::take(0ns);
  std::jthread killer([&, waiter = gettid()] {
    harness::wait_until_asleep(waiter);
    raw.die();
  });
  const Agree agree = [](bool mine) { return mine; };
  expect_error(ErrorCode::kPeerLost, {"rank 1"}, [&] {
    take_turns(agree, {0, 1}, *raw.mesh, Deadline::after(60s), "all_reduce");
  });
}

TEST(ProcessTurn, an_error_of_the_agreement_leaves_no_turn_behind) {
  const auto raw = make_raw_mesh();
  for (const int fails_at : {1, 2, 3}) {
    int asked = 0;
    const Agree agree = [&](bool /*mine*/) -> bool {
      if (++asked == fails_at) throw Error(ErrorCode::kPeerLost, "rank 1 is lost");
      return asked > 1;
    };
    expect_error(ErrorCode::kPeerLost, {"rank 1 is lost"}, [&] {
      take_turns(agree, {0, 1}, *raw.mesh, Deadline::after(10s), "all_reduce");
    });
    EXPECT_TRUE(ProcessTurn::take(0ns)) << fails_at;
  }
}

// In a separate process, because the turn is lost for the rest of the process.
TEST(ProcessTurn, one_that_is_given_up_is_lost_a_moment_later_until_it_comes_back) {
  const auto results = run_process_ranks(1, [](ProcessGroup& /*group*/) {
    auto turn = ProcessTurn::take(0ns);
    turn->give_up();
    EXPECT_FALSE(ProcessTurn::is_lost());
    const auto raw = make_raw_mesh();
    const Agree agree = [](bool mine) { return mine; };
    expect_error(ErrorCode::kSystem, {"cannot be used any more in this process"}, [&] {
      take_turns(agree, {0, 1}, *raw.mesh, Deadline::after(60s), "all_reduce");
    });
    EXPECT_TRUE(ProcessTurn::is_lost());
    turn.reset();
    EXPECT_FALSE(ProcessTurn::is_lost());
    EXPECT_TRUE(ProcessTurn::take(0ns));
    return std::string("done");
  });
  EXPECT_EQ(results[0].report, "done");
}

TEST(ProcessTurn, one_that_is_kept_is_lost_at_once_and_for_ever) {
  const auto results = run_process_ranks(1, [](ProcessGroup& /*group*/) {
    auto turn = ProcessTurn::take(0ns);
    turn->keep();
    turn.reset();
    EXPECT_TRUE(ProcessTurn::is_lost());
    EXPECT_FALSE(ProcessTurn::take(0ns));
    return std::string("done");
  });
  EXPECT_EQ(results[0].report, "done");
}

TEST(ProcessTurn, a_rank_that_may_not_go_on_keeps_no_turn) {
  const auto raw = make_raw_mesh();
  int asked = 0;
  const Agree agree = [&](bool /*mine*/) {
    // The agreement fails at the second rank, which is free to take its turn then.
    if (++asked == 2) {
      EXPECT_TRUE(ProcessTurn::take(0ns));
    }
    return asked > 1;
  };
  EXPECT_TRUE(take_turns(agree, {5, 3}, *raw.mesh, Deadline::after(10s), "all_reduce"));
  EXPECT_EQ(asked, 3);
}

}  // namespace
}  // namespace paceline
