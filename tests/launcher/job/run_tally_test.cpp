#include "paceline/launcher/job/run_tally.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/harness/says.h"

namespace paceline::launcher {
namespace {

using harness::Says;
using testing::AllOf;
using testing::Not;

StepReading steps(std::uint64_t made, double seconds, std::optional<std::uint64_t> begun_at) {
  StepReading reading;
  reading.steps = made;
  reading.seconds = seconds;
  reading.begun_at = begun_at;
  return reading;
}

// The same reading, with the start of the first step and the end of the last one.
StepReading steps(std::uint64_t made, double seconds, std::uint64_t begun_at, double first_began,
                  double last_ended) {
  StepReading reading = steps(made, seconds, begun_at);
  reading.first_began = first_began;
  reading.last_ended = last_ended;
  return reading;
}

TEST(RunTally, steps_that_were_made_again_are_lost) {
  RunTally tally;
  tally.started(100);
  tally.ended(110, steps(80, 8, 0));
  tally.started(112);
  tally.ended(120, steps(60, 6, 50));  // makes 30 of the 80 steps again, up to step 110
  EXPECT_EQ(tally.steps_lost(), 30u);
  // Steps took 14 s of the 20 s, and 110 of 140 steps were kept.
  EXPECT_DOUBLE_EQ(*tally.goodput(), 14 * 110 / 140.0 / 20);
  EXPECT_FALSE(tally.time_spent());
  EXPECT_THAT(tally.text(), Says("tally.steps_lost", 140, 30));
  EXPECT_THAT(tally.text(), Says("tally.time", "20.0"));
  EXPECT_THAT(tally.text(), Says("tally.without_ranks", "10.0", "2.0"));
  EXPECT_THAT(tally.text(), Says("tally.goodput_of_time", "55.0"));
}

// Until 111 the first generation takes 2 s to start, 8 s for steps and 1 s to evaluate. A failure
// ends it at 112. The second one begins its first step at 115, and at the end it saves for 2 s.
TEST(RunTally, the_cost_of_restarts_is_told_apart_from_the_jobs_own_time) {
  RunTally tally;
  tally.started(100);
  tally.ended(112, steps(80, 8, 0, 102, 111));
  tally.started(113);
  tally.ended(123, steps(60, 6, 50, 115, 121));
  const auto spent = tally.time_spent();
  ASSERT_TRUE(spent);
  EXPECT_DOUBLE_EQ(spent->kept, 11);
  EXPECT_DOUBLE_EQ(spent->made_again, 3);
  EXPECT_DOUBLE_EQ(spent->recovering, 4);  // from 111 to 115
  EXPECT_DOUBLE_EQ(spent->own, 2 + 1 + 2);
  EXPECT_DOUBLE_EQ(spent->all(), 23);
  EXPECT_DOUBLE_EQ(spent->goodput(), *tally.goodput());
  EXPECT_DOUBLE_EQ(spent->relative_goodput(), 16 / 23.0);
  EXPECT_THAT(tally.text(), Says("tally.steps_kept", "47.8", "11.0"));
  EXPECT_THAT(tally.text(), Says("tally.lost_to_restarts", "30.4", "7.0", "3.0", "4.0"));
  EXPECT_THAT(tally.text(), Says("tally.job_itself", "21.7", "5.0"));
  EXPECT_THAT(tally.text(), Says("tally.goodput", "69.6", "47.8"));
}

TEST(RunTally, a_run_without_a_restart_loses_nothing_to_one) {
  RunTally tally;
  tally.started(0);
  tally.ended(20, steps(50, 10, 0, 4, 18));
  EXPECT_DOUBLE_EQ(tally.time_spent()->relative_goodput(), 1);
  EXPECT_DOUBLE_EQ(tally.time_spent()->own, 10);
}

// Only the second and the fourth of five generations make a step.
TEST(RunTally, generations_without_a_step_are_recovering) {
  RunTally tally;
  tally.started(0);
  tally.ended(3, {});
  tally.started(4);
  tally.ended(10, steps(10, 4, 0, 5, 9));
  tally.started(10);
  tally.ended(12, steps(0, 0, 10));
  tally.started(12);
  tally.ended(20, steps(10, 5, 10, 14, 19));
  tally.started(20);
  tally.ended(25, {});
  const auto spent = tally.time_spent();
  ASSERT_TRUE(spent);
  EXPECT_DOUBLE_EQ(spent->kept, 9);
  EXPECT_DOUBLE_EQ(spent->made_again, 0);
  EXPECT_DOUBLE_EQ(spent->recovering, 4 + 5 + 6);  // 0 to 4, 9 to 14, 19 to 25
  EXPECT_DOUBLE_EQ(spent->own, 1);                 // 4 to 5
  EXPECT_DOUBLE_EQ(spent->all(), 25);
}

TEST(RunTally, moments_that_cannot_be_are_not_counted_on) {
  for (const auto& [first, last] :
       {std::pair(-5.0, 5.0), std::pair(2.0, 11.0), std::pair(3.0, 6.0), std::pair(6.0, 3.0)}) {
    RunTally tally;
    tally.started(0);
    tally.ended(10, steps(10, 4, 0, first, last));
    EXPECT_FALSE(tally.time_spent()) << first << " " << last;
    EXPECT_DOUBLE_EQ(*tally.goodput(), 0.4);
  }
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
  EXPECT_THAT(silent.text(),
              AllOf(Not(Says("tally.steps_lost")), Not(Says("tally.steps_with_repeats"))));
  RunTally unplaced;
  unplaced.started(0);
  unplaced.ended(1, steps(5, 1, {}));
  EXPECT_FALSE(unplaced.goodput());
  EXPECT_THAT(unplaced.text(), Says("tally.steps_with_repeats", 5));
}

}  // namespace
}  // namespace paceline::launcher
