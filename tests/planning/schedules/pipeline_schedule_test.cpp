// Plans as text, and the schedules that validate() refuses.

#include "paceline/planning/schedules/pipeline_schedule.h"

#include <gtest/gtest.h>

#include "paceline/planning/schedules/named_schedules.h"
#include "paceline/planning/schedules/schedule_checks.h"

#include "tests/harness/expect_error.h"

namespace paceline::pipeline {
namespace {

TEST(PlanText, an_action_is_stage_letter_micro_batch) {
  for (const auto kind : {Action::Kind::kForward, Action::Kind::kBackward,
                          Action::Kind::kInputGradient, Action::Kind::kWeightGradient}) {
    const Action action{kind, 12, 3};
    EXPECT_EQ(parse_action(to_string(action)), action);
  }
  EXPECT_EQ(to_string(Action{Action::Kind::kInputGradient, 2, 10}), "2I10");
}

TEST(PlanText, other_texts_are_refused) {
  for (const char* text :
       {"", "F", "0F", "F0", "0X1", "-1F0", "0F-1", "0F0 ", "0F1F2", "1.5F0", "99999999999F0"}) {
    expect_error(ErrorCode::kInvalid, {"is not an action"}, [&] { parse_action(text); });
  }
}

TEST(PlanText, a_plan_survives_the_way_through_its_text) {
  for (const auto name : pipeline_schedule_names()) {
    const PipelineSchedule schedule = pipeline_schedule(name, 3, 6, 1);
    EXPECT_EQ(PipelineSchedule::from_csv(to_csv(schedule), schedule.name), schedule) << name;
  }
}

TEST(PlanText, empty_cells_are_bubbles) {
  const PipelineSchedule schedule =
      PipelineSchedule::from_csv("0F0,0F1,,,0B0, ,0B1\n,1F0,1B0,1F1,1B1\n");
  EXPECT_EQ(to_csv(schedule), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  EXPECT_EQ(schedule.num_micro_batches, 2);
  validate(schedule);
}

TEST(PlanText, layouts) {
  EXPECT_EQ(looped_layout(3, 2), (std::vector<int>{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(v_layout(3), (std::vector<int>{0, 1, 2, 2, 1, 0}));
  expect_error(ErrorCode::kInvalid, {"at least one rank", "0 and 2"}, [] { looped_layout(0, 2); });
  expect_error(ErrorCode::kInvalid, {"0F1: stage 0 is on rank 0 and on rank 1"},
               [] { PipelineSchedule::from_csv("0F0\n0F1\n"); });
  expect_error(ErrorCode::kInvalid, {"no rank has stage 0 of 2"},
               [] { PipelineSchedule::from_csv("1F0\n"); });
  expect_error(ErrorCode::kInvalid, {"fewer than 100000 stages"},
               [] { PipelineSchedule::from_csv("2000000000F0\n"); });
}

struct Refused {
  const char* csv;
  std::vector<std::string> words;
};

TEST(Validate, names_the_rank_and_the_action) {
  const std::vector<Refused> all = {
      {"0F0,0F0,0B0\n", {"rank 0", "0F0 appears twice"}},
      {"0F0,0F1,0B0\n", {"rank 0", "0B1 is missing"}},
      {"0F0,0B0\n1B0\n", {"rank 1", "1F0 is missing"}},
      {"0F0,0I0\n", {"rank 0", "0W0 is missing"}},
      {"0F0,0W0\n", {"rank 0", "0I0 is missing"}},
      {"0F0,0B0,0W0\n", {"rank 0", "0B0 appears as a whole and in halves"}},
      {"0B0,0F0\n", {"rank 0", "0B0 needs 0F0, which comes later on that rank"}},
      {"0F0,0W0,0I0\n", {"rank 0", "0W0 needs 0I0, which comes later on that rank"}},
      {"", {"at least one of each"}},
      {"0F0,0B0\n\n", {"rank 1 has no stage"}},
  };
  for (const auto& [csv, words] : all) {
    SCOPED_TRACE(csv);
    expect_error(ErrorCode::kInvalid, words, [&] { validate(PipelineSchedule::from_csv(csv)); });
  }
}

TEST(Validate, a_cycle_over_ranks_is_a_deadlock) {
  // Rank 0 waits for micro-batch 0 to return before it sends micro-batch 1; rank 1 waits for
  // micro-batch 1 first.
  expect_error(
      ErrorCode::kInvalid,
      {"deadlock", "rank 0: 0B0 (action 1 of 4) needs 1B0 of rank 1", "wait forever at 1F1"},
      [] { validate(PipelineSchedule::from_csv("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n")); });
}

TEST(Validate, an_action_on_another_rank) {
  PipelineSchedule schedule = pipeline_schedule("gpipe", 2, 1);
  schedule.rank_of_stage = {1, 0};
  expect_error(ErrorCode::kInvalid, {"rank 0", "0F0 belongs to rank 1"},
               [&] { validate(schedule); });
  schedule.rank_of_stage = {0, 2};
  expect_error(ErrorCode::kInvalid, {"stage 1 is on rank 2 of 2"}, [&] { validate(schedule); });
  schedule = pipeline_schedule("gpipe", 2, 1);
  schedule.ranks[1].push_back({Action::Kind::kForward, 1, 7});
  expect_error(ErrorCode::kInvalid, {"rank 1", "1F7 is outside of 2 stages and 1 micro-batches"},
               [&] { validate(schedule); });
}

}  // namespace
}  // namespace paceline::pipeline
