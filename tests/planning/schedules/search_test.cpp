// The search: never slower than a named schedule, within memory limits, and faster on unequal
// stages.

#include "paceline/planning/schedules/search.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "paceline/planning/schedules/named_schedules.h"
#include "paceline/planning/schedules/pipeline_schedule.h"
#include "paceline/planning/schedules/schedule_checks.h"

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
        const auto result = search_schedule(looped_layout(ranks, per_rank), micro_batches, costs,
                                            {.num_trials = 300});
        validate(result.schedule);
        ASSERT_LE(result.timed.seconds, best_named(result) + 1e-12);
        ASSERT_GE(result.timed.seconds, result.lower_bound_s - 1e-9);
        ASSERT_DOUBLE_EQ(simulate(result.schedule, costs).seconds, result.timed.seconds);
        faster += result.timed.seconds < 0.999 * best_named(result) ? 1 : 0;
        ++all;
      }
    }
  }
  EXPECT_GT(faster, all / 3) << "of " << all;
}

// The first stage is slow, like one with an embedding, and the halves of the second stage's
// backward pass differ.
TEST(Search, is_faster_on_unequal_stages) {
  Costs costs = equal_costs(4, {.transfer_s = 0.1});
  costs.stages[0] = {.forward_s = 2, .input_gradient_s = 0.2, .weight_gradient_s = 2};
  costs.stages[1] = {.forward_s = 1, .input_gradient_s = 2, .weight_gradient_s = 0.5};
  const auto result = search_schedule(looped_layout(4, 1), 8, costs);
  EXPECT_LT(result.timed.seconds, 0.95 * best_named(result));
  EXPECT_EQ(result.schedule.name, "searched");
}

TEST(Search, keeps_to_memory) {
  const Costs costs = equal_costs(4);
  for (const double limit : {1.0, 2.0, 3.0, 4.0, 8.0}) {
    const auto result =
        search_schedule(looped_layout(4, 1), 8, costs,
                        {.limits = {std::vector<double>(4, limit)}, .num_trials = 500});
    for (const double peak : result.timed.peak_bytes) EXPECT_LE(peak, limit);
    EXPECT_LE(result.timed.seconds, best_named(result));
  }
  // More memory allows a faster schedule.
  const auto tight =
      search_schedule(looped_layout(4, 1), 12, costs, {.limits = {std::vector<double>(4, 2.0)}});
  const auto wide =
      search_schedule(looped_layout(4, 1), 12, costs, {.limits = {std::vector<double>(4, 4.0)}});
  EXPECT_LT(wide.timed.seconds, tight.timed.seconds);
}

TEST(Search, says_which_rank_has_too_little_memory) {
  Costs costs = equal_costs(3);
  costs.stages[1].activation_bytes = 5;
  expect_error(
      ErrorCode::kInvalid, {"rank 1 may keep 4 bytes", "needs 5", "smaller micro-batches"}, [&] {
        search_schedule(looped_layout(3, 1), 4, costs, {.limits = {std::vector<double>(3, 4.0)}});
      });
}

TEST(Search, keeps_halves_together_when_told_to) {
  const auto result =
      search_schedule(looped_layout(4, 1), 8, equal_costs(4), {.may_split_backward = false});
  EXPECT_EQ(to_csv(result.schedule).find_first_of("IW"), std::string::npos);
  EXPECT_DOUBLE_EQ(result.timed.seconds, 33);
  EXPECT_EQ(result.schedule.name, "1f1b") << "nothing is faster, so it keeps its name";
}

// Halves cost more than whole backward passes, so only passes at the end of the step are split.
TEST(Search, splits_backward_passes_only_where_it_pays) {
  const Costs costs =
      equal_costs(2, {.input_gradient_s = 1.2, .weight_gradient_s = 1.2, .backward_s = 2.0});
  const auto result = search_schedule(looped_layout(2, 1), 8, costs);
  validate(result.schedule);
  EXPECT_LT(result.timed.seconds, 0.97 * best_named(result));
  const std::string text = to_csv(result.schedule);
  const auto count = [&](char letter) { return std::count(text.begin(), text.end(), letter); };
  EXPECT_GE(count('B'), 10) << text;
  EXPECT_GE(count('I'), 1) << text;
  EXPECT_EQ(count('B') + count('I'), 16);
}

TEST(Search, takes_any_layout) {
  const Costs costs = equal_costs(8);
  const auto result = search_schedule(v_layout(4), 8, costs);
  validate(result.schedule);
  EXPECT_TRUE(result.named.empty());
  EXPECT_EQ(result.schedule.rank_of_stage, v_layout(4));
}

TEST(Search, gives_the_same_plan_for_the_same_arguments) {
  std::mt19937_64 random(11);
  const Costs costs = random_costs(4, random);
  EXPECT_EQ(search_schedule(looped_layout(4, 1), 8, costs).schedule,
            search_schedule(looped_layout(4, 1), 8, costs).schedule);
}

TEST(Layouts, go_round_as_often_as_there_are_layers) {
  using Layouts = std::vector<std::vector<int>>;
  EXPECT_EQ(possible_layouts(2, 3), (Layouts{{0, 1}}));
  EXPECT_EQ(possible_layouts(2, 6),
            (Layouts{{0, 1}, {0, 1, 0, 1}, {0, 1, 0, 1, 0, 1}, {0, 1, 1, 0}}));
  EXPECT_EQ(possible_layouts(2, 6, 2), (Layouts{{0, 1}, {0, 1, 0, 1}, {0, 1, 1, 0}}));
  EXPECT_EQ(possible_layouts(1, 2), (Layouts{{0}, {0, 0}}));
  expect_error(ErrorCode::kInvalid, {"layouts of 1 layers on 2 ranks"},
               [] { possible_layouts(2, 1); });
}

// Equal layers, divided for each layout.
std::vector<Division> divisions_of(int ranks, int layers, const StageCosts& layer) {
  std::vector<Division> divisions;
  for (const auto& layout : possible_layouts(ranks, layers)) {
    Division division{.rank_of_stage = layout,
                      .layers = split_by_cost(
                          std::vector<double>(static_cast<std::size_t>(layers), 1.0), layout)};
    for (const int count : division.layers) {
      StageCosts stage = layer;
      for (double* const value : {&stage.forward_s, &stage.input_gradient_s,
                                  &stage.weight_gradient_s, &stage.activation_bytes})
        *value *= count;
      division.costs.stages.push_back(stage);
    }
    divisions.push_back(division);
  }
  return divisions;
}

TEST(SearchOfDivisions, is_never_slower_than_any_named_schedule_of_any_layout) {
  for (const double transfer : {0.0, 0.2, 3.0}) {
    for (const int ranks : {2, 4}) {
      const auto divisions = divisions_of(ranks, 8, {.transfer_s = transfer});
      const auto search = search_divisions(divisions, 8, {.num_trials = 300});
      const Division& chosen = divisions[search.division];
      validate(search.found.schedule);
      EXPECT_EQ(search.found.schedule.rank_of_stage, chosen.rank_of_stage);
      EXPECT_DOUBLE_EQ(simulate(search.found.schedule, chosen.costs).seconds,
                       search.found.timed.seconds);
      ASSERT_TRUE(search.best_named.fits);
      EXPECT_LE(search.found.timed.seconds, search.best_named.seconds + 1e-12);
      for (const Division& one : divisions) {
        const auto own = search_schedule(one.rank_of_stage, 8, one.costs, {.num_trials = 0});
        if (!own.named.empty()) {
          EXPECT_LE(search.best_named.seconds, best_named(own) + 1e-12);
        }
      }
    }
  }
}

TEST(SearchOfDivisions, takes_more_stages_only_where_they_pay) {
  // If backward passes stay whole, only several stages per rank make the bubble smaller.
  SearchOptions options{.may_split_backward = false, .num_trials = 100};
  const auto cheap = search_divisions(divisions_of(2, 8, {}), 4, options);
  EXPECT_GT(cheap.found.schedule.num_stages(), 2);
  const auto dear = search_divisions(divisions_of(2, 8, {.transfer_s = 20}), 4, options);
  EXPECT_EQ(dear.found.schedule.num_stages(), 2);
}

TEST(SearchOfDivisions, says_what_does_not_fit) {
  expect_error(ErrorCode::kInvalid, {"over divisions needs at least one"},
               [] { search_divisions({}, 4); });
  expect_error(ErrorCode::kInvalid, {"rank 0 may keep 2 bytes", "needs 4"}, [] {
    search_divisions(divisions_of(2, 8, {}), 4, {.limits = {{2.0, 2.0}}});
  });
}

TEST(Search, refuses_what_does_not_fit_together) {
  expect_error(ErrorCode::kInvalid, {"0 stages and 4 micro-batches were given"},
               [] { search_schedule({}, 4, {}); });
  expect_error(ErrorCode::kInvalid, {"rank 1 of 3 has no stage"}, [] {
    search_schedule({0, 2}, 4, equal_costs(2));
  });
  expect_error(ErrorCode::kInvalid, {"memory limits of 1 ranks for a pipeline of 2"}, [] {
    search_schedule({0, 1}, 4, equal_costs(2), {.limits = {{1.0}}});
  });
}

}  // namespace
}  // namespace paceline::pipeline
