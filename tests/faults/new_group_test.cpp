// Ranks that do not take part while the others make a subgroup: they have died, left or aborted, or
// are in another call. The others wait for them no longer than in any collective.

#include <functional>
#include <numeric>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "paceline/engine/transport/wire.h"

#include "tests/harness/process_ranks.h"
#include "tests/harness/random_seed.h"
#include "tests/harness/says.h"
#include "tests/harness/shared_counter.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::run_process_ranks;
using harness::Says;
using testing::AllOf;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kLimit = 3s;  // the promise is one second; the rest is for a busy machine
constexpr int kWorld = 3;
constexpr int kOdd = kWorld - 1;

std::vector<int> all_of(const ProcessGroup& group) {
  std::vector<int> all(static_cast<std::size_t>(group.world_size()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

class NewGroupTest : public testing::TestWithParam<std::tuple<TransportKind, bool>> {
 protected:
  bool splits() const { return std::get<1>(GetParam()); }
  std::string name() const { return splits() ? "split" : "new_group"; }
  void make(ProcessGroup& group) const {
    splits() ? group.split(0, group.rank()) : group.new_group(all_of(group));
  }

  // The results of the other ranks if the last rank calls `instead`.
  std::vector<harness::ProcessResult> others_get(
      const std::function<void(ProcessGroup&)>& instead) const {
    const auto begin = Clock::now();
    // Counts the ranks that have passed the barrier, so that `instead` cannot disturb it.
    harness::SharedCounter passed;
    auto results = run_process_ranks(kWorld,
                                     [&](ProcessGroup& group) {
                                       group.barrier();
                                       passed.add();
                                       passed.wait_for(kWorld, Deadline::after(10s));
                                       group.rank() == kOdd ? instead(group) : make(group);
                                       return std::string();
                                     },
                                     {.transport = std::get<0>(GetParam()), .group_timeout = 20s});
    EXPECT_LT(Clock::now() - begin, kLimit);
    results.pop_back();
    return results;
  }
};

TEST_P(NewGroupTest, a_dead_rank_is_lost_by_name) {
  for (const auto& result : others_get([](ProcessGroup&) { ::kill(::getpid(), SIGKILL); })) {
    EXPECT_EQ(result.code, ErrorCode::kPeerLost) << result.report;
    EXPECT_EQ(result.context.ranks, std::vector{kOdd}) << result.report;
    EXPECT_EQ(result.context.operation, name()) << result.report;
  }
}

TEST_P(NewGroupTest, a_rank_that_has_left_is_lost_by_name) {
  for (const auto& result : others_get([](ProcessGroup&) {})) {
    EXPECT_EQ(result.code, ErrorCode::kPeerLost) << result.report;
    EXPECT_EQ(result.context.ranks, std::vector{kOdd}) << result.report;
    EXPECT_EQ(result.context.operation, name()) << result.report;
  }
}

TEST_P(NewGroupTest, a_rank_that_aborts_says_why) {
  for (const auto& result :
       others_get([](ProcessGroup& group) { group.abort("the loss is NaN"); })) {
    EXPECT_EQ(result.code, ErrorCode::kAborted) << result.report;
    EXPECT_THAT(result.report, AllOf(HasSubstr("the loss is NaN"), HasSubstr(name() + " #2")));
  }
}

TEST_P(NewGroupTest, a_rank_in_another_call_is_a_mismatch_that_shows_both) {
  for (const auto& result : others_get([](ProcessGroup& group) { group.barrier(); })) {
    EXPECT_THAT(result.code, AnyOf(ErrorCode::kInvalid, ErrorCode::kAborted)) << result.report;
    EXPECT_EQ(result.context.operation, name()) << result.report;
    EXPECT_THAT(result.context.ranks, ElementsAre(testing::_)) << result.report;
  }
}

// The kill may also fall between the call that all ranks make and the first connection.
TEST_P(NewGroupTest, a_rank_killed_at_any_moment_of_making_groups_is_named_soon) {
  std::mt19937 random(harness::random_seed());
  for (int round = 0; round < 10; ++round) {
    const int victim = round % kWorld;
    harness::SharedCounter started;
    Clock::time_point killed;
    const auto results = run_process_ranks(
        kWorld,
        [&](ProcessGroup& group) {
          group.barrier();
          started.add();
          for (;;) make(group);
          return std::string();
        },
        {.transport = std::get<0>(GetParam()), .group_timeout = 20s},
        [&](const std::vector<pid_t>& pids) {
          started.wait_for(kWorld, Deadline::after(20s));
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 30'000));
          killed = Clock::now();
          ::kill(pids[static_cast<std::size_t>(victim)], SIGKILL);
        });
    for (int rank = 0; rank < kWorld; ++rank) {
      if (rank == victim) continue;
      const auto& result = results[static_cast<std::size_t>(rank)];
      ASSERT_TRUE(result.threw) << result.signal;
      EXPECT_THAT(result.code, AnyOf(ErrorCode::kPeerLost, ErrorCode::kAborted)) << result.report;
      EXPECT_EQ(result.context.ranks, std::vector{victim}) << round << ": " << result.report;
      EXPECT_LT(result.ended - killed, kLimit) << result.report;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Calls, NewGroupTest,
                         testing::Combine(testing::Values(TransportKind::kShm, TransportKind::kTcp),
                                          testing::Bool()),
                         [](const auto& info) {
                           return std::string(name_of(std::get<0>(info.param))) +
                                  (std::get<1>(info.param) ? "_split" : "_new_group");
                         });

// A group whose ranks have other numbers than in the world: its rank 1 is rank 3 of the world, and
// calls `instead` while the two other members call barrier().
class RanksOfAPartTest : public testing::TestWithParam<TransportKind> {
 protected:
  std::vector<harness::ProcessResult> others_get(
      const std::function<void(ProcessGroup&)>& instead) const {
    auto results = run_process_ranks(4,
                                     [&](ProcessGroup& group) {
                                       const auto part = group.new_group({0, 3, 1});
                                       if (part->is_member()) {
                                         part->rank() == 1 ? instead(*part)
                                                           : static_cast<void>(part->barrier());
                                       }
                                       return std::string();
                                     },
                                     {.transport = GetParam(), .group_timeout = 2s});
    results.resize(2);
    return results;
  }
  static void expect_names(const harness::ProcessResult& result, const char* own) {
    EXPECT_TRUE(result.threw);
    EXPECT_THAT(result.report,
                AllOf(testing::StartsWith(own), HasSubstr("rank 1 (rank 3 of the world, ")));
  }
};

constexpr const char* kNamesInPart[] = {"rank 0: ", "rank 2 (rank 1 of the world): "};

// Several rounds, because the rank sometimes dies before the others have formed the group.
TEST_P(RanksOfAPartTest, one_that_died_is_named_by_the_world_and_so_is_its_log) {
  for (int round = 0; round < 20; ++round) {
    const auto results = others_get([](ProcessGroup&) { ::kill(::getpid(), SIGKILL); });
    for (const int rank : {0, 1}) {
      expect_names(results[rank], kNamesInPart[rank]);
      EXPECT_THAT(results[rank].report, HasSubstr("; see the output of rank 3; this rank was "));
    }
  }
}

TEST_P(RanksOfAPartTest, one_that_is_late_is_named_by_the_world) {
  const auto results = others_get([](ProcessGroup&) { std::this_thread::sleep_for(5s); });
  for (const int rank : {0, 1}) expect_names(results[rank], kNamesInPart[rank]);
}

TEST_P(RanksOfAPartTest, one_in_another_call_is_named_by_the_world) {
  const auto results = others_get([](ProcessGroup& part) { part.new_group({0, 1}); });
  for (const int rank : {0, 1}) {
    EXPECT_THAT(results[rank].report, HasSubstr("rank 3 of the world"));
    EXPECT_THAT(results[rank].report, testing::StartsWith(kNamesInPart[rank]));
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, RanksOfAPartTest,
                         testing::Values(TransportKind::kShm, TransportKind::kTcp),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// The group is made from a subgroup, whose ranks have other numbers than in the world.
TEST(NewGroup, two_orders_of_the_same_members_are_named_by_the_world) {
  const auto results = harness::run_ranks(4, [](ProcessGroup& group) {
    const auto upper = group.new_group({2, 3});
    if (!upper->is_member()) return;
    try {
      upper->new_group(upper->rank() == 0 ? std::vector<int>{0, 1} : std::vector<int>{1, 0});
      ADD_FAILURE() << "nothing was noticed";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalid);
      const bool first = upper->rank() == 0;
      EXPECT_THAT(error.what(), Says("mismatch.new_group", 1, "world.0"));
      EXPECT_THAT(
          error.what(),
          HasSubstr(first ? "this rank means ranks 2, 3 of the world, rank 1 (rank 3 of the "
                            "world) means 3, 2"
                          : "this rank means ranks 3, 2 of the world, rank 0 (rank 2 of the "
                            "world) means 2, 3"));
    }
    EXPECT_EQ(all_reduce_value(*upper, 1), 2);  // still works: all members got the error
  });
  for (const auto& result : results) EXPECT_FALSE(result.error) << result.error->what();
}

}  // namespace
}  // namespace paceline
