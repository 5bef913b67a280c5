#include "paceline/launch/run_tally.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace paceline::launch {
namespace {

using testing::HasSubstr;
using testing::Not;

StepReading steps(std::uint64_t made, double seconds, std::optional<std::uint64_t> begun_at) {
  StepReading reading;
  reading.steps = made;
  reading.seconds = seconds;
  reading.begun_at = begun_at;
  return reading;
}

TEST(RunTally, steps_that_were_made_again_are_lost) {
  RunTally tally;
  tally.started(100);
  tally.ended(110, steps(80, 8, 0));
  tally.started(112);
  tally.ended(120, steps(60, 6, 50));  // 30 of the 80 again, up to 110
  EXPECT_EQ(tally.steps_lost(), 30u);
  // 14 s of steps, 110 of 140 kept, in 20 s.
  EXPECT_DOUBLE_EQ(*tally.goodput(), 14 * 110 / 140.0 / 20);
  EXPECT_THAT(tally.text(), HasSubstr("time                  20.0 s, without ranks 2.0 s of it"));
  EXPECT_THAT(tally.text(), HasSubstr("steps                 140, 30 of them lost and made again"));
  EXPECT_THAT(tally.text(), HasSubstr("goodput               55.0%"));
}

TEST(RunTally, a_job_that_is_resumed_from_a_checkpoint_loses_nothing_by_it) {
  RunTally tally;
  tally.started(0);
  tally.ended(10, steps(90, 9, 1000));
  EXPECT_EQ(tally.steps_lost(), 0u);
  EXPECT_DOUBLE_EQ(*tally.goodput(), 0.9);
}

TEST(RunTally, a_generation_without_a_step_costs_time_alone) {
  RunTally tally;
  tally.started(0);
  tally.ended(10, steps(100, 10, 0));
  tally.started(10);
  tally.ended(15, {});
  tally.started(15);
  tally.ended(20, steps(0, 0, 90));
  tally.started(20);
  tally.ended(30, steps(100, 10, 90));
  EXPECT_EQ(tally.steps_lost(), 10u);
  EXPECT_DOUBLE_EQ(*tally.goodput(), 19 / 30.0);
}

TEST(RunTally, everything_is_lost_by_a_job_that_ends_further_back_than_it_began) {
  RunTally tally;
  tally.started(0);
  tally.ended(1, steps(5, 1, 100));
  tally.started(1);
  tally.ended(2, steps(5, 1, 20));
  EXPECT_EQ(tally.steps_lost(), 10u);
  EXPECT_DOUBLE_EQ(*tally.goodput(), 0);
}

TEST(RunTally, says_no_more_than_the_ranks_do) {
  RunTally silent;
  silent.started(0);
  silent.ended(1, {});
  EXPECT_THAT(silent.text(), Not(HasSubstr("steps")));
  RunTally unplaced;
  unplaced.started(0);
  unplaced.ended(1, steps(5, 1, {}));
  EXPECT_FALSE(unplaced.goodput());
  EXPECT_THAT(unplaced.text(), HasSubstr("steps                 5, with those made again"));
}

}  // namespace
}  // namespace paceline::launch
