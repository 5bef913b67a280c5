#include <cmath>

#include <gtest/gtest.h>

#include "paceline/planning/forecast/step_parts.h"

namespace paceline::planning {
namespace {

TEST(Goodput, the_best_interval_begins_with_youngs_formula) {
  // Daly (2006): if a checkpoint is short compared with M, sqrt(2 x checkpoint x M) - checkpoint.
  const FailureCosts costs{.mtbf_s = 1e8, .checkpoint_s = 1, .restart_s = 0};
  EXPECT_NEAR(best_interval(costs) / std::sqrt(2e8), 1, 1e-4);
}

TEST(Goodput, no_other_interval_is_better) {
  for (const double mtbf : {100.0, 1000.0, 1e5}) {
    const FailureCosts costs{.mtbf_s = mtbf, .checkpoint_s = 10, .restart_s = 60};
    const double best = goodput(costs, best_interval(costs));
    for (const double factor : {0.25, 0.5, 0.8, 1.25, 2.0, 4.0})
      EXPECT_GT(best * 1.001, goodput(costs, factor * best_interval(costs))) << mtbf << factor;
  }
}

TEST(Goodput, by_hand) {
  // M = 100, interval 10, no cost of checkpoints or restarts: 10 / (100 (e^0.1 - 1)).
  EXPECT_NEAR(goodput({.mtbf_s = 100}, 10), 0.1 / (std::exp(0.1) - 1), 1e-12);
  // Restarts of 50 s multiply this by e^-0.5.
  EXPECT_NEAR(goodput({.mtbf_s = 100, .restart_s = 50}, 10),
              std::exp(-0.5) * 0.1 / (std::exp(0.1) - 1), 1e-12);
  // Without failures only checkpoints cost time: 90 of 100 s remain.
  EXPECT_DOUBLE_EQ(goodput({.checkpoint_s = 10}, 90), 0.9);
}

TEST(Goodput, a_checkpoint_longer_than_failures_are_apart) {
  const FailureCosts costs{.mtbf_s = 10, .checkpoint_s = 50, .restart_s = 0};
  EXPECT_DOUBLE_EQ(best_interval(costs), 10);
  EXPECT_LT(goodput(costs, 10), 0.01);
}

TEST(Stragglers, the_slowest_of_many) {
  EXPECT_EQ(deviations_of_slowest(1), 0);
  // The expected maximum of n normal numbers (tables of order statistics): 0.564, 1.539, 2.508.
  EXPECT_NEAR(deviations_of_slowest(2), 0.564, 0.03);
  EXPECT_NEAR(deviations_of_slowest(10), 1.539, 0.02);
  EXPECT_NEAR(deviations_of_slowest(100), 2.508, 0.02);
  EXPECT_GT(deviations_of_slowest(100'000), deviations_of_slowest(1'000));
}

}  // namespace
}  // namespace paceline::planning
