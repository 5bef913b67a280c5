#include <algorithm>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/training/data/batch_source.h"

namespace paceline::data {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAreArray;

std::vector<std::int64_t> iota(std::int64_t size, std::int64_t first = 0) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(size));
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

// The samples of each step on all ranks together, without those of weight 0.
std::vector<std::vector<std::int64_t>> steps_of_all(std::int64_t num_samples, std::int64_t consumed,
                                                    BatchSplit split) {
  std::vector<std::vector<std::int64_t>> steps;
  for (split.rank = 0; split.rank < split.num_ranks; ++split.rank) {
    std::size_t step = 0;
    for (const auto& batch : plan_global_batches(iota(num_samples), consumed, split)) {
      EXPECT_FALSE(batch.indices.empty());
      if (steps.size() <= step) steps.emplace_back();
      if (batch.weight > 0) {
        steps[step].insert(steps[step].end(), batch.indices.begin(), batch.indices.end());
      }
      if (batch.ends_step) ++step;
    }
    EXPECT_EQ(step, steps.size()) << "rank " << split.rank << " takes another number of steps";
  }
  return steps;
}

TEST(BatchPlan, by_rank_cuts_the_ranks_samples_and_counts_those_of_all) {
  const auto plan = plan_batches(iota(5, 10), 6, {.size = 2, .num_ranks = 3});
  ASSERT_EQ(plan.size(), 3U);
  EXPECT_THAT(plan[1].indices, ElementsAre(12, 13));
  EXPECT_THAT(plan[2].indices, ElementsAre(14));
  EXPECT_EQ(plan[1].consumed, 6 + 4 * 3);
  EXPECT_EQ(plan[2].consumed, 6 + 5 * 3);
  EXPECT_EQ(plan_batches(iota(5), 0, {.size = 2, .drop_last = true}).size(), 2U);
}

TEST(BatchPlan, a_global_step_takes_the_same_samples_at_any_number_of_ranks) {
  for (const std::int64_t size : {1, 5, 12, 100}) {
    for (const std::int64_t micro : {0, 1, 3, 50}) {
      for (const int ranks : {1, 2, 3, 4, 5, 8}) {
        const BatchSplit split{.size = size, .micro_size = micro, .num_ranks = ranks};
        const auto steps = steps_of_all(50, 7, split);
        std::int64_t place = 7;
        for (const auto& step : steps) {
          const auto count = std::min<std::int64_t>(size, 50 - place);
          EXPECT_THAT(step, UnorderedElementsAreArray(iota(count, place)));
          place += count;
        }
        EXPECT_EQ(place, 50);
      }
    }
  }
}

TEST(BatchPlan, shares_differ_by_one_and_their_parts_are_even_and_small_enough) {
  const auto plan =
      plan_global_batches(iota(14), 0, {.size = 14, .micro_size = 3, .num_ranks = 3, .rank = 1});
  ASSERT_EQ(plan.size(), 2U);  // rank 1 has 5 of 14 samples
  EXPECT_THAT(plan[0].indices, ElementsAre(1, 4));
  EXPECT_THAT(plan[1].indices, ElementsAre(7, 10, 13));
  EXPECT_FALSE(plan[0].ends_step);
  EXPECT_TRUE(plan[1].ends_step);
  EXPECT_DOUBLE_EQ(plan[0].weight, 2 * 3 / 14.0);
  EXPECT_DOUBLE_EQ(plan[1].weight, 3 * 3 / 14.0);
  EXPECT_EQ(plan[1].consumed, 14);
}

TEST(BatchPlan, even_shares_in_one_part_weigh_exactly_one) {
  for (const int ranks : {1, 2, 3, 4, 6, 12}) {
    for (const auto& batch : plan_global_batches(iota(36), 0, {.size = 12, .num_ranks = ranks})) {
      EXPECT_EQ(batch.weight, 1);
    }
  }
}

TEST(BatchPlan, weights_make_the_average_over_ranks_the_mean_over_the_steps_samples) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const std::int64_t samples : {1, 5, 12}) {
      double all = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        for (const auto& batch :
             plan_global_batches(iota(samples), 0,
                                 {.size = 12, .micro_size = 2, .num_ranks = ranks, .rank = rank})) {
          all += batch.weight / ranks;
        }
      }
      EXPECT_NEAR(all, 1, 1e-12) << samples << " samples, " << ranks << " ranks";
    }
  }
}

TEST(BatchPlan, a_rank_without_a_share_takes_a_sample_that_does_not_count) {
  const auto plan = plan_global_batches(iota(2), 0, {.size = 8, .num_ranks = 3, .rank = 2});
  ASSERT_EQ(plan.size(), 1U);
  EXPECT_EQ(plan[0].weight, 0);
  EXPECT_THAT(plan[0].indices, ElementsAre(0));
}

TEST(BatchPlan, no_sample_is_lost_or_seen_twice_while_the_world_shrinks_and_grows) {
  std::vector<std::int64_t> seen;
  std::int64_t consumed = 0;
  for (const int ranks : {4, 1, 3, 8, 5, 2, 7}) {
    BatchSplit split{.size = 10, .micro_size = 2, .num_ranks = ranks};
    const auto steps = steps_of_all(127, consumed, split);
    for (std::size_t step = 0; step < std::min<std::size_t>(2, steps.size()); ++step) {
      seen.insert(seen.end(), steps[step].begin(), steps[step].end());
      consumed += static_cast<std::int64_t>(steps[step].size());
    }
  }
  EXPECT_EQ(consumed, 127);
  EXPECT_THAT(seen, UnorderedElementsAreArray(iota(127)));
}

TEST(BatchPlan, what_does_not_fill_a_global_batch_can_be_left_out) {
  const auto plan = plan_global_batches(iota(25), 0, {.size = 10, .drop_last = true});
  EXPECT_EQ(plan.size(), 2U);
}

// Shard s of a step has the samples s, s + 4, ..., whichever rank computes it.
TEST(BatchPlan, logical_shards_are_the_same_at_any_number_of_ranks) {
  const BatchSplit whole{.size = 10, .num_shards = 4};
  const auto alone = plan_global_batches(iota(25), 3, whole);
  ASSERT_EQ(alone.size(), 12U);
  EXPECT_THAT(alone[1].indices, ElementsAre(4, 8, 12));
  EXPECT_DOUBLE_EQ(alone[1].weight, 4 * 3 / 10.0);
  EXPECT_THAT(alone[11].indices, ElementsAre(23)) << "a step of two samples has two shards without";
  EXPECT_EQ(alone[11].weight, 0);
  for (const int ranks : {2, 4}) {
    std::vector<std::vector<PlannedBatch>> plans;
    for (int rank = 0; rank < ranks; ++rank) {
      BatchSplit split = whole;
      split.num_ranks = ranks;
      split.rank = rank;
      plans.push_back(plan_global_batches(iota(25), 3, split));
    }
    const std::size_t each = 4 / static_cast<std::size_t>(ranks);
    for (std::size_t i = 0; i < alone.size(); ++i) {
      const std::size_t step = i / 4, shard = i % 4;
      const PlannedBatch& batch = plans[shard / each][step * each + shard % each];
      EXPECT_EQ(batch.shard, static_cast<std::int64_t>(shard));
      EXPECT_EQ(batch.indices, alone[i].indices);
      EXPECT_EQ(batch.weight, alone[i].weight);
      EXPECT_EQ(batch.position, alone[i].position);
      EXPECT_EQ(batch.consumed, alone[i].consumed);
      EXPECT_EQ(batch.ends_step, shard % each + 1 == each);
    }
  }
}

}  // namespace
}  // namespace paceline::data
