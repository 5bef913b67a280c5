#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/bench/report.h"

namespace paceline::bench {
namespace {

TEST(StatisticsTest, median_is_the_middle) {
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({9, 1, 3}), 3);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
}

TEST(StatisticsTest, percentile_is_by_nearest_rank) {
  std::vector<double> values(100);
  std::iota(values.rbegin(), values.rend(), 1);
  EXPECT_EQ(percentile(values, 95), 95);
  EXPECT_EQ(percentile(values, 99), 99);
  EXPECT_EQ(percentile(values, 100), 100);
  EXPECT_EQ(percentile(values, 0), 1);
  EXPECT_EQ(percentile({7}, 95), 7);
  EXPECT_EQ(percentile({1, 2, 3, 4, 5}, 95), 5);
}

TEST(StatisticsTest, ratios_are_taken_pair_by_pair) {
  EXPECT_THAT(ratios({6, 9}, {2, 9}), testing::ElementsAre(3, 1));
  EXPECT_EQ(spread_of({3, 1, 2}), (Spread{2, 1, 3}));
}

}  // namespace
}  // namespace paceline::bench
