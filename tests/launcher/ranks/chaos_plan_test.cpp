#include "paceline/launcher/ranks/chaos_plan.h"

#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/core/error.h"

namespace paceline::launcher {
namespace {

using testing::ElementsAre;

std::uint64_t no_steps(int /*rank*/) { return 0; }

std::vector<std::pair<double, int>> kills(const std::string& faults, std::uint64_t seed,
                                          double until, int world_size = 4) {
  ChaosPlan plan(parse_faults(faults), seed);
  std::vector<std::pair<double, int>> all;
  while (plan.next_moment() <= until) {
    const double now = plan.next_moment();
    for (const auto& action : plan.due(now, world_size, no_steps))
      all.emplace_back(now, action.rank);
  }
  return all;
}

TEST(ChaosPlan, reads_every_form) {
  const auto faults = parse_faults(
      "kill:rate=1/15s,kill:rank=2:every=3.5s,stop:rank=1@2s,slow:rank=0,stop:for=2s@30s,"
      "kill:rate=4/60s,slow:every=0.001");
  EXPECT_THAT(
      faults,
      ElementsAre(Fault{.mean_seconds = 15}, Fault{.rank = 2, .every_seconds = 3.5},
                  Fault{.kind = FaultKind::kStop, .rank = 1, .at_seconds = 2, .for_seconds = 5},
                  Fault{.kind = FaultKind::kSlow, .rank = 0},
                  Fault{.kind = FaultKind::kStop, .at_seconds = 30, .for_seconds = 2},
                  Fault{.mean_seconds = 15},
                  Fault{.kind = FaultKind::kSlow, .every_seconds = 0.001}));
}

TEST(ChaosPlan, refuses_what_makes_no_sense) {
  for (const std::string text :
       {"", "burn", "kill:rate=15", "kill:rate=1/x", "kill:every=0s", "kill:rank=-1", "kill@",
        "kill@step5", "kill:rank=1@step", "kill:rank=1@stepx", "kill@x", "kill:rank=1:every=2s@3s",
        "kill:colour=red", "kill,,stop",
        // These faults would come too often to be carried out, or never.
        "kill:rank=0:every=1e-300s", "kill:every=0.0009s", "kill:rate=1/1e-5s", "kill:rate=1001/1s",
        "kill:rate=0/15s"}) {
    EXPECT_THROW(parse_faults(text), Error) << text;
  }
}

TEST(ChaosPlan, the_same_seed_gives_the_same_moments_and_ranks) {
  const auto first = kills("kill:rate=1/2s", 7, 1000);
  EXPECT_EQ(first, kills("kill:rate=1/2s", 7, 1000));
  EXPECT_NE(first, kills("kill:rate=1/2s", 8, 1000));
  EXPECT_GT(first.size(), 400u);
  EXPECT_LT(first.size(), 600u);
  std::vector<int> per_rank(4);
  for (const auto& [moment, rank] : first) ++per_rank.at(static_cast<std::size_t>(rank));
  for (const int count : per_rank) EXPECT_GT(count, 70);
}

TEST(ChaosPlan, a_late_call_gives_the_same_ranks) {
  const auto ranks = [](double interval) {
    ChaosPlan plan(parse_faults("kill:rate=1/2s,kill:every=1.5s,kill:rank=2@3s"), 7);
    std::vector<int> all;
    for (double now = interval; now <= 60; now += interval) {
      for (const auto& action : plan.due(now, 1000, no_steps)) all.push_back(action.rank);
    }
    return all;
  };
  const auto often = ranks(0.25);
  EXPECT_GT(often.size(), 50U);
  EXPECT_EQ(often, ranks(10));
  EXPECT_EQ(often, ranks(60));
}

TEST(ChaosPlan, exact_moments_come_exactly) {
  EXPECT_THAT(
      kills("kill:rank=1:every=3s,kill:rank=0@4s", 1, 9.5),
      ElementsAre(std::pair(3.0, 1), std::pair(4.0, 0), std::pair(6.0, 1), std::pair(9.0, 1)));
}

TEST(ChaosPlan, a_moment_by_steps_comes_once_with_the_steps_of_its_rank) {
  ChaosPlan plan(parse_faults("kill:rank=1@step50"), 1);
  std::uint64_t steps = 49;
  const auto of_rank_1 = [&](int rank) { return rank == 1 ? steps : 1000; };
  EXPECT_TRUE(plan.due(1, 2, of_rank_1).empty());
  EXPECT_TRUE(plan.waits_for_steps());
  EXPECT_EQ(plan.next_moment(), ChaosPlan::kNever);
  steps = 53;
  const auto actions = plan.due(2, 2, of_rank_1);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(actions[0].rank, 1);
  EXPECT_EQ(actions[0].signal, SIGKILL);
  EXPECT_TRUE(plan.due(3, 2, of_rank_1).empty());
  EXPECT_FALSE(plan.waits_for_steps());
}

TEST(ChaosPlan, a_stopped_rank_is_set_going_again) {
  ChaosPlan plan(parse_faults("stop:rank=1:for=2s@1s"), 1);
  EXPECT_TRUE(plan.due(0.5, 2, no_steps).empty());
  EXPECT_EQ(plan.due(1, 2, no_steps).at(0).signal, SIGSTOP);
  EXPECT_EQ(plan.next_moment(), 3);
  EXPECT_EQ(plan.due(3, 2, no_steps).at(0).signal, SIGCONT);
  EXPECT_EQ(plan.next_moment(), ChaosPlan::kNever);
}

TEST(ChaosPlan, a_slow_rank_alternates_and_ends_going) {
  ChaosPlan plan(parse_faults("slow:rank=0:for=1s"), 1);
  int stops = 0, last = 0;
  for (double now = 0; now < 2; now += 0.01) {
    for (const auto& action : plan.due(now, 1, no_steps)) {
      stops += action.signal == SIGSTOP ? 1 : 0;
      last = action.signal;
    }
  }
  EXPECT_GT(stops, 15);
  EXPECT_EQ(last, SIGCONT);
}

}  // namespace
}  // namespace paceline::launcher
