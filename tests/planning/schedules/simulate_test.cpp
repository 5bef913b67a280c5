// Compares the simulator with the formulas of the papers.

#include "paceline/planning/schedules/simulate.h"

#include <limits>

#include <gtest/gtest.h>

#include "paceline/planning/schedules/named_schedules.h"

#include "tests/harness/expect_error.h"

namespace paceline::pipeline {
namespace {

// A forward pass, an input gradient and a weight gradient take 1 s each; an activation takes 1 byte
// until the weight gradient has been computed.
TimedSchedule timed(const PipelineSchedule& schedule) {
  return simulate(schedule, equal_costs(schedule.num_stages()));
}

TEST(Simulate, time_and_memory_of_gpipe_and_1f1b) {
  for (int stages = 1; stages <= 16; ++stages) {
    for (int micro_batches = 1; micro_batches <= 64; ++micro_batches) {
      const double formula = 3.0 * (micro_batches + stages - 1);
      const auto gpipe_step = timed(pipeline_schedule("gpipe", stages, micro_batches));
      const auto step = timed(pipeline_schedule("1f1b", stages, micro_batches));
      ASSERT_DOUBLE_EQ(gpipe_step.seconds, formula);
      ASSERT_DOUBLE_EQ(step.seconds, formula);
      ASSERT_NEAR(step.bubble_share(), (stages - 1.0) / (micro_batches + stages - 1.0), 1e-12);
      for (int stage = 0; stage < stages; ++stage) {
        ASSERT_EQ(gpipe_step.peak_bytes[static_cast<std::size_t>(stage)], micro_batches);
        ASSERT_EQ(step.peak_bytes[static_cast<std::size_t>(stage)],
                  std::min(micro_batches, stages - stage));
      }
    }
  }
}

// Bubbles shrink by the number of stages per rank (Narayanan et al., 2021).
TEST(Simulate, time_of_interleaved_1f1b) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (int per_rank = 1; per_rank * ranks <= 16; ++per_rank) {
      for (int micro_batches = ranks; micro_batches <= 64; micro_batches += ranks) {
        const auto step =
            timed(pipeline_schedule("interleaved-1f1b", ranks, micro_batches, per_rank));
        ASSERT_DOUBLE_EQ(step.seconds, 3.0 * micro_batches * per_rank + 3.0 * (ranks - 1))
            << ranks << " " << per_rank << " " << micro_batches;
      }
    }
  }
}

// ZB-H1 (Qi et al., 2023): a bubble of (S - 1)(F + I - W), and no rank keeps more than the first
// rank of 1F1B.
TEST(Simulate, time_and_memory_of_zero_bubble) {
  for (int stages = 1; stages <= 16; ++stages) {
    for (int micro_batches = 1; micro_batches <= 64; ++micro_batches) {
      const auto step = timed(pipeline_schedule("zero-bubble", stages, micro_batches));
      for (const double peak : step.peak_bytes)
        ASSERT_LE(peak, std::min(micro_batches, stages)) << stages << " " << micro_batches;
      if (micro_batches >= stages) {
        ASSERT_DOUBLE_EQ(step.seconds, 3.0 * micro_batches + (stages - 1))
            << stages << " " << micro_batches;
      }
    }
  }
}

TEST(Simulate, transfers_cost_nothing_within_a_rank) {
  Costs costs = equal_costs(2, {.transfer_s = 5});
  EXPECT_DOUBLE_EQ(simulate(pipeline_schedule("gpipe", 2, 1), costs).seconds, 6 + 10);
  EXPECT_DOUBLE_EQ(simulate(pipeline_schedule("gpipe", 1, 1, 2), costs).seconds, 6);
}

TEST(Simulate, a_whole_backward_pass_may_be_cheaper_than_its_halves) {
  const Costs costs = equal_costs(1, {.backward_s = 1.5});
  EXPECT_DOUBLE_EQ(simulate(pipeline_schedule("gpipe", 1, 2), costs).seconds, 5);
  EXPECT_DOUBLE_EQ(simulate(pipeline_schedule("zero-bubble", 1, 2), costs).seconds, 6);
}

TEST(Simulate, actions_of_a_rank_do_not_overlap_and_follow_what_they_need) {
  const auto step =
      simulate(pipeline_schedule("zero-bubble", 3, 5, 1), equal_costs(3, {.transfer_s = 0.25}));
  for (const auto& rank : step.ranks) {
    for (std::size_t i = 1; i < rank.size(); ++i) EXPECT_GE(rank[i].begin_s, rank[i - 1].end_s);
  }
  EXPECT_DOUBLE_EQ(step.ranks[1][0].begin_s, 1.25);
  EXPECT_EQ(describe({.name = "x", .num_micro_batches = 1, .rank_of_stage = {}, .ranks = {}},
                     {.ranks = {{}}, .seconds = 2, .busy_s = {1}, .peak_bytes = {3}}),
            "x: 2 s, bubble 50.0%, peak memory 3 bytes on rank 0");
}

TEST(Simulate, refuses_bad_plans_and_costs) {
  expect_error(ErrorCode::kInvalid, {"deadlock", "rank 0: 0B0"}, [] {
    simulate(PipelineSchedule::from_csv("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n"), equal_costs(2));
  });
  expect_error(ErrorCode::kInvalid, {"costs of 3 stages for a pipeline of 2"},
               [] { simulate(pipeline_schedule("gpipe", 2, 2), equal_costs(3)); });
  for (const double bad : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
    expect_error(ErrorCode::kInvalid, {"stage 0 has a cost of"}, [&] {
      simulate(pipeline_schedule("gpipe", 2, 2), equal_costs(2, {.forward_s = bad}));
    });
  }
}

}  // namespace
}  // namespace paceline::pipeline
