// Compares the named schedules with known small examples, and checks their promises for all sizes.

#include "paceline/planning/schedules/named_schedules.h"

#include <gtest/gtest.h>

#include "paceline/planning/schedules/pipeline_schedule.h"
#include "paceline/planning/schedules/schedule_checks.h"
#include "paceline/planning/schedules/simulate.h"

#include "tests/harness/expect_error.h"

namespace paceline::pipeline {
namespace {

TEST(NamedPlans, gpipe_text) {
  EXPECT_EQ(to_csv(pipeline_schedule("gpipe", 2, 3)),
            "0F0,0F1,0F2,0B0,0B1,0B2\n"
            "1F0,1F1,1F2,1B0,1B1,1B2\n");
  EXPECT_EQ(to_csv(pipeline_schedule("gpipe", 2, 2, 2)),
            "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1\n"
            "1F0,1F1,3F0,3F1,3B0,3B1,1B0,1B1\n");
}

TEST(NamedPlans, one_f_one_b_text) {
  EXPECT_EQ(to_csv(pipeline_schedule("1f1b", 3, 4)),
            "0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3\n"
            "1F0,1F1,1B0,1F2,1B1,1F3,1B2,1B3\n"
            "2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3\n");
}

// torch.distributed.pipelining's ScheduleInterleaved1F1B for 2 ranks with 2 stages each and 4
// micro-batches, without its empty cells.
TEST(NamedPlans, interleaved_text) {
  EXPECT_EQ(to_csv(pipeline_schedule("interleaved-1f1b", 2, 4, 2)),
            "0F0,0F1,2F0,2F1,0F2,2B0,0F3,2B1,2F2,0B0,2F3,0B1,2B2,2B3,0B2,0B3\n"
            "1F0,1F1,3F0,3B0,3F1,3B1,1F2,1B0,1F3,1B1,3F2,3B2,3F3,3B3,1B2,1B3\n");
}

// ZB-H1: the weight gradients of rank r run r slots later.
TEST(NamedPlans, zero_bubble_text) {
  EXPECT_EQ(to_csv(pipeline_schedule("zero-bubble", 2, 3)),
            "0F0,0F1,0I0,0W0,0F2,0I1,0W1,0I2,0W2\n"
            "1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1W2\n");
}

TEST(NamedPlans, every_size_is_complete_and_without_deadlock) {
  for (int stages = 1; stages <= 16; ++stages) {
    for (int micro_batches = 1; micro_batches <= 64; ++micro_batches) {
      for (const auto name : {"gpipe", "1f1b", "zero-bubble"})
        ASSERT_NO_THROW(validate(pipeline_schedule(name, stages, micro_batches)))
            << name << " " << stages << " " << micro_batches;
    }
  }
}

TEST(NamedPlans, several_stages_a_rank_are_complete_and_without_deadlock) {
  int made = 0;
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (int per_rank = 1; per_rank * ranks <= 16; ++per_rank) {
      for (int micro_batches = 1; micro_batches <= 64; ++micro_batches) {
        validate(pipeline_schedule("gpipe", ranks, micro_batches, per_rank));
        if (micro_batches % std::max(1, micro_batches / ranks) != 0) continue;
        for (const auto name : {"interleaved-1f1b", "zero-bubble"})
          ASSERT_NO_THROW(validate(pipeline_schedule(name, ranks, micro_batches, per_rank)))
              << name << " " << ranks << " " << per_rank << " " << micro_batches;
        ++made;
      }
    }
  }
  EXPECT_GT(made, 1000);
}

TEST(NamedPlans, impossible_sizes_are_refused) {
  expect_error(ErrorCode::kInvalid, {"1f1b: 2 stages a rank"},
               [] { pipeline_schedule("1f1b", 2, 4, 2); });
  expect_error(ErrorCode::kInvalid,
               {"interleaved-1f1b: 7 micro-batches on 3 ranks", "multiple of 3"},
               [] { pipeline_schedule("interleaved-1f1b", 3, 7, 2); });
  expect_error(ErrorCode::kInvalid, {"0 micro-batches"}, [] { pipeline_schedule("gpipe", 2, 0); });
  expect_error(ErrorCode::kInvalid, {"at least one rank"},
               [] { pipeline_schedule("zero-bubble", 0, 1); });
  expect_error(ErrorCode::kInvalid, {"unknown schedule 'dapple'", "gpipe, 1f1b"},
               [] { pipeline_schedule("dapple", 2, 4); });
}

}  // namespace
}  // namespace paceline::pipeline
