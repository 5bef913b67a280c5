// The search: never slower than a named schedule, within memory, faster on unequal stages.

#include "paceline/schedules/search.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "paceline/schedules/named_plans.h"
#include "paceline/schedules/validate.h"

#include "tests/harness/expect_error.h"

namespace paceline::pipeline {
namespace {

double best_named(const SearchResult& result) {
  double best = 1e300;
  for (const auto& named : result.named) {
    if (named.fits) best = std::min(best, named.seconds);
  }
  return best;
}

Costs random_costs(int stages, std::mt19937_64& random) {
  std::uniform_real_distribution<double> time(0.2, 2.0);
  Costs costs = equal_costs(stages);
  for (StageCosts& each : costs.stages) {
    each.forward_s = time(random);
    each.input_gradient_s = time(random);
    each.weight_gradient_s = time(random);
    each.activation_bytes = time(random);
    each.deferred_bytes = each.activation_bytes / 2;
    each.transfer_s = time(random) / 10;
  }
  return costs;
}

TEST(Search, is_never_slower_than_the_best_named_schedule) {
  std::mt19937_64 random(7);
  int faster = 0, all = 0;
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (const int per_rank : {1, 2}) {
      for (const int micro_batches : {1, 2, 5, 8, 16}) {
        const Costs costs = random_costs(ranks * per_rank, random);
        const auto result =
            search_plan(looped_layout(ranks, per_rank), micro_batches, costs, {.num_trials = 300});
        validate(result.plan);
        ASSERT_LE(result.timed.seconds, best_named(result) + 1e-12);
        ASSERT_GE(result.timed.seconds, result.lower_bound_s - 1e-9);
        ASSERT_DOUBLE_EQ(simulate(result.plan, costs).seconds, result.timed.seconds);
        faster += result.timed.seconds < 0.999 * best_named(result) ? 1 : 0;
        ++all;
      }
    }
  }
  EXPECT_GT(faster, all / 3) << "of " << all;
}

// The first stage is slow, as one with an embedding is, and the second one's halves differ.
TEST(Search, is_faster_on_unequal_stages) {
  Costs costs = equal_costs(4, {.transfer_s = 0.1});
  costs.stages[0] = {.forward_s = 2, .input_gradient_s = 0.2, .weight_gradient_s = 2};
  costs.stages[1] = {.forward_s = 1, .input_gradient_s = 2, .weight_gradient_s = 0.5};
  const auto result = search_plan(looped_layout(4, 1), 8, costs);
  EXPECT_LT(result.timed.seconds, 0.95 * best_named(result));
  EXPECT_EQ(result.plan.name, "searched");
}

TEST(Search, keeps_to_memory) {
  const Costs costs = equal_costs(4);
  for (const double limit : {1.0, 2.0, 3.0, 4.0, 8.0}) {
    const auto result = search_plan(looped_layout(4, 1), 8, costs,
                                    {.limits = {std::vector<double>(4, limit)}, .num_trials = 500});
    for (const double peak : result.timed.peak_bytes) EXPECT_LE(peak, limit);
    EXPECT_LE(result.timed.seconds, best_named(result));
  }
  // What memory is worth.
  const auto tight =
      search_plan(looped_layout(4, 1), 12, costs, {.limits = {std::vector<double>(4, 2.0)}});
  const auto wide =
      search_plan(looped_layout(4, 1), 12, costs, {.limits = {std::vector<double>(4, 4.0)}});
  EXPECT_LT(wide.timed.seconds, tight.timed.seconds);
}

TEST(Search, says_which_rank_has_too_little_memory) {
  Costs costs = equal_costs(3);
  costs.stages[1].activation_bytes = 5;
  expect_error(
      ErrorCode::kInvalid, {"rank 1 may keep 4 bytes", "needs 5", "smaller micro-batches"}, [&] {
        search_plan(looped_layout(3, 1), 4, costs, {.limits = {std::vector<double>(3, 4.0)}});
      });
}

TEST(Search, keeps_halves_together_when_told_to) {
  const auto result =
      search_plan(looped_layout(4, 1), 8, equal_costs(4), {.may_split_backward = false});
  EXPECT_EQ(to_csv(result.plan).find_first_of("IW"), std::string::npos);
  EXPECT_DOUBLE_EQ(result.timed.seconds, 33);
  EXPECT_EQ(result.plan.name, "1f1b") << "nothing is faster, so it keeps its name";
}

TEST(Search, takes_any_layout) {
  const Costs costs = equal_costs(8);
  const auto result = search_plan(v_layout(4), 8, costs);
  validate(result.plan);
  EXPECT_TRUE(result.named.empty());
  EXPECT_EQ(result.plan.rank_of_stage, v_layout(4));
}

TEST(Search, gives_the_same_plan_for_the_same_arguments) {
  std::mt19937_64 random(11);
  const Costs costs = random_costs(4, random);
  EXPECT_EQ(search_plan(looped_layout(4, 1), 8, costs).plan,
            search_plan(looped_layout(4, 1), 8, costs).plan);
}

TEST(Search, refuses_what_does_not_fit_together) {
  expect_error(ErrorCode::kInvalid, {"stages and micro-batches, not 0 and 4"},
               [] { search_plan({}, 4, {}); });
  expect_error(ErrorCode::kInvalid, {"rank 1 of 3 has no stage"}, [] {
    search_plan({0, 2}, 4, equal_costs(2));
  });
  expect_error(ErrorCode::kInvalid, {"memory limits of 1 ranks for a pipeline of 2"}, [] {
    search_plan({0, 1}, 4, equal_costs(2), {.limits = {{1.0}}});
  });
}

}  // namespace
}  // namespace paceline::pipeline
