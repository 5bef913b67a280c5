// How a training should be divided, decided by memory alone. A machine has 100 GB, and 90 GB
// may be used.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/launcher/placement/training_advice.h"

#include "tests/harness/says.h"

namespace paceline::launcher {
namespace {

using harness::Says;

constexpr std::uint64_t kGigabyte = 1'000'000'000;

// `parameters` and `others` are in GB; a rank needs `others` in addition to four times
// `parameters`.
DivisionAdvice choose(int ranks, std::uint64_t parameters, std::uint64_t others,
                      double step_seconds = 0) {
  return choose_division({.num_ranks = ranks,
                          .parameter_bytes = parameters * kGigabyte,
                          .rank_bytes = (4 * parameters + others) * kGigabyte,
                          .step_seconds = step_seconds,
                          .machine_bytes = 100 * kGigabyte});
}

TEST(Division, replicas_while_they_fit) {
  EXPECT_EQ(choose(4, 4, 6).division, Division::kReplicas);  // 4 ranks x 22 GB = 88 GB
  EXPECT_THAT(choose(4, 4, 6).reason, Says("advise.replicas_fit", "4.0 GB", "16.0 GB", "6.0 GB",
                                           "88.0 GB", "4 ranks", "100.0 GB"));
  EXPECT_EQ(choose(1, 20, 9).division, Division::kReplicas);
}

TEST(Division, the_optimizer_is_sharded_first) {
  const auto advice = choose(4, 4, 7);  // 4 x 23 = 92; sharded: 4 x (8 + 7) + 8 = 68
  EXPECT_EQ(advice.division, Division::kShardedOptimizer);
  EXPECT_EQ(advice.num_ranks, 4);
  EXPECT_THAT(advice.reason, Says("advise.optimizer_divided", "68.0 GB"));
}

TEST(Division, then_the_whole_model) {
  // 4 x 50; optimizer sharded: 4 x 30 + 20 = 140; all sharded: 4 x 10 + 40 = 80.
  const auto advice = choose(4, 10, 10);
  EXPECT_EQ(advice.division, Division::kShardedModel);
  EXPECT_EQ(advice.num_machines, 1);
  EXPECT_THAT(advice.reason, Says("advise.model_divided", "80.0 GB"));
}

TEST(Division, state_that_cannot_be_sharded_means_fewer_ranks) {
  const auto advice = choose(8, 1, 26);  // 30 GB for each rank; 8 x 26 GB alone is too much
  EXPECT_EQ(advice.division, Division::kReplicas);
  EXPECT_EQ(advice.num_ranks, 3);
}

TEST(Division, a_model_that_does_not_fit_is_sharded_over_machines) {
  const auto advice = choose(1, 50, 10, 600.0);  // 200 GB / (90 - 10) GB
  EXPECT_EQ(advice.division, Division::kShardedModel);
  EXPECT_EQ(advice.num_machines, 3);
  EXPECT_EQ(advice.num_ranks, 1);
  EXPECT_EQ(choose(1, 50, 10).num_machines, 3);  // without a measured step
}

TEST(Division, it_is_split_where_shards_would_move_longer_than_a_step_takes) {
  const auto advice = choose(1, 50, 10, 60.0);  // 150 GB at 10 Gbit/s take 120 s
  EXPECT_EQ(advice.division, Division::kSplitModel);
  EXPECT_EQ(advice.num_machines, 3);  // 210 GB / 90 GB
  EXPECT_THAT(advice.reason, Says("advise.shards_move_slowly", "120.0", "60.0"));
}

TEST(Division, it_is_split_where_activations_do_not_fit) {
  const auto advice = choose(1, 5, 100);
  EXPECT_EQ(advice.division, Division::kSplitModel);
  EXPECT_EQ(advice.num_machines, 2);
  EXPECT_THAT(advice.reason, Says("advise.rest_does_not_fit"));
}

TEST(Division, without_a_measurement_the_parameters_alone_count) {
  const auto advice = choose_division(
      {.num_ranks = 2, .parameter_bytes = 5 * kGigabyte, .machine_bytes = 100 * kGigabyte});
  EXPECT_EQ(advice.division, Division::kReplicas);
  EXPECT_THAT(advice.reason, Says("advise.unmeasured_need", "20.0 GB", "40.0 GB", "2 ranks"));
}

// For all numbers the advice must be one that can be followed.
TEST(Division, is_sound_for_all_numbers) {
  for (int ranks : {1, 2, 3, 8, 128}) {
    for (std::uint64_t parameters : {1, 10, 22, 23, 100, 1000}) {
      for (std::uint64_t others : {0, 1, 10, 89, 90, 91, 1000}) {
        const auto advice = choose(ranks, parameters, others, 1000.0);
        EXPECT_GE(advice.num_ranks, 1);
        EXPECT_LE(advice.num_ranks, ranks);
        EXPECT_GE(advice.num_machines, 1);
        EXPECT_FALSE(advice.reason.empty());
        EXPECT_EQ(advice.num_machines > 1, 4 * parameters + others > 90)
            << parameters << " " << others;
      }
    }
  }
}

}  // namespace
}  // namespace paceline::launcher
