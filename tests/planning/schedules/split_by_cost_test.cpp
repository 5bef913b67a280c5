#include <limits>

#include <gtest/gtest.h>

#include "paceline/planning/schedules/search.h"

#include "tests/harness/expect_error.h"

namespace paceline::pipeline {
namespace {

using Counts = std::vector<int>;

TEST(SplitByCost, the_most_expensive_stage_costs_as_little_as_possible) {
  EXPECT_EQ(split_by_cost({1, 1, 1, 1}, 2), (Counts{2, 2}));
  EXPECT_EQ(split_by_cost({1, 1, 1, 1, 4}, 2), (Counts{4, 1}));
  EXPECT_EQ(split_by_cost({3, 1, 1, 1, 3}, 3), (Counts{1, 3, 1}));
  EXPECT_EQ(split_by_cost({5}, 1), (Counts{1}));
  // Tries every cut of the same layers.
  const std::vector<double> costs{2, 7, 1, 8, 2, 8, 1, 8};
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t a = 1; a < 7; ++a) {
    for (std::size_t b = a + 1; b < 8; ++b) {
      double sums[3] = {};
      for (std::size_t i = 0; i < costs.size(); ++i) sums[i < a ? 0 : i < b ? 1 : 2] += costs[i];
      least = std::min(least, std::max({sums[0], sums[1], sums[2]}));
    }
  }
  double most = 0;
  std::size_t layer = 0;
  for (const int count : split_by_cost(costs, 3)) {
    double sum = 0;
    for (int i = 0; i < count; ++i) sum += costs[layer++];
    most = std::max(most, sum);
  }
  EXPECT_EQ(layer, costs.size());
  EXPECT_EQ(most, least);
}

TEST(SplitByCost, stages_besides_the_most_expensive_one_are_even) {
  EXPECT_EQ(split_by_cost({8, 1, 1, 1, 1}, 3), (Counts{1, 2, 2}));
  EXPECT_EQ(split_by_cost({0, 0, 0}, 3), (Counts{1, 1, 1}));
}

// Compares the split with the best of all cuts, which is the one whose busiest rank has the least
// cost. Splitting by stages alone would miss it.
TEST(SplitByCost, ranks_with_several_stages_have_as_little_to_do_as_possible) {
  const std::vector<double> costs{3, 2, 2, 2, 2, 2, 2, 5, 1, 3};
  for (const std::vector<int>& layout :
       {std::vector<int>{0, 1, 0, 1}, std::vector<int>{0, 1, 1, 0}}) {
    const auto busiest = [&](const Counts& counts) {
      double ranks[2] = {};
      std::size_t layer = 0;
      for (std::size_t stage = 0; stage < counts.size(); ++stage) {
        for (int i = 0; i < counts[stage]; ++i) ranks[layout[stage]] += costs[layer++];
      }
      EXPECT_EQ(layer, costs.size());
      return std::max(ranks[0], ranks[1]);
    };
    double least = std::numeric_limits<double>::infinity();
    for (int a = 1; a < 8; ++a) {
      for (int b = 1; a + b < 9; ++b) {
        for (int c = 1; a + b + c < 10; ++c)
          least = std::min(least, busiest({a, b, c, 10 - a - b - c}));
      }
    }
    EXPECT_EQ(busiest(split_by_cost(costs, layout)), least);
  }
  EXPECT_EQ(split_by_cost({1, 1, 1, 1, 4}, {0, 1}), split_by_cost({1, 1, 1, 1, 4}, 2));
  expect_error(ErrorCode::kInvalid, {"a stage is on rank 2,", "less than the number of stages, 2"},
               [] {
                 split_by_cost({1, 1}, {0, 2});
               });
}

TEST(SplitByCost, bad_costs_are_refused) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect_error(ErrorCode::kInvalid, {"2 layers are too few for 3 stages"}, [] {
    split_by_cost({1, 1}, 3);
  });
  expect_error(ErrorCode::kInvalid, {"0 stages"}, [] { split_by_cost({1, 1}, 0); });
  expect_error(ErrorCode::kInvalid, {"the cost of layer 1 is -1"}, [] {
    split_by_cost({1, -1}, 1);
  });
  expect_error(ErrorCode::kInvalid, {"the cost of layer 0 is nan"}, [&] {
    split_by_cost({nan, 1}, 1);
  });
}

}  // namespace
}  // namespace paceline::pipeline
