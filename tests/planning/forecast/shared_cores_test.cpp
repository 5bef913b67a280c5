#include <gtest/gtest.h>

#include "paceline/planning/forecast/step_parts.h"
#include "paceline/planning/schedules/named_schedules.h"

namespace paceline::planning {
namespace {

using pipeline::equal_costs;

TEST(SharedCores, enough_cores_change_nothing) {
  for (const char* const name : {"gpipe", "1f1b", "zero-bubble"}) {
    const auto plan = pipeline_schedule(name, 4, 8);
    const auto costs = equal_costs(4, {.forward_s = 1, .input_gradient_s = 1.5, .transfer_s = 0.1});
    EXPECT_NEAR(seconds_on_shared_cores(plan, costs, {0, 0, 0, 0}, 4),
                simulate(plan, costs).seconds, 1e-9)
        << name;
  }
}

TEST(SharedCores, one_core_does_all_the_work) {
  const auto plan = pipeline_schedule("1f1b", 3, 4);
  // 3 stages x 4 micro-batches x (1 + 2) s: some rank can always compute.
  const auto costs =
      equal_costs(3, {.forward_s = 1, .input_gradient_s = 1, .weight_gradient_s = 1});
  EXPECT_NEAR(seconds_on_shared_cores(plan, costs, {0, 0, 0}, 1), 36, 1e-9);
}

TEST(SharedCores, hosts_do_not_share_with_each_other) {
  const auto plan = pipeline_schedule("gpipe", 2, 4);
  const auto costs =
      equal_costs(2, {.forward_s = 1, .input_gradient_s = 1, .weight_gradient_s = 1});
  EXPECT_NEAR(seconds_on_shared_cores(plan, costs, {0, 1}, 1), simulate(plan, costs).seconds, 1e-9);
}

TEST(SharedCores, by_hand) {
  // One micro-batch on each of two ranks with two stages, on 1.5 cores. F0 on stage 0: 0 to 1 s.
  // Then F0 on stage 1 and F1 on stage 0 run together at 3/4 speed, to 1 + 4/3 s. Then stage 1 runs
  // B0 alone: 1 s; then B0 on stage 0 beside F1 on stage 1: 4/3 s; B1 on stage 1: 1 s; B1 on stage
  // 0: 1 s.
  const auto plan = pipeline_schedule("1f1b", 2, 2);
  const auto costs =
      equal_costs(2, {.forward_s = 1, .input_gradient_s = 0.5, .weight_gradient_s = 0.5});
  EXPECT_NEAR(seconds_on_shared_cores(plan, costs, {0, 0}, 1.5), 1 + 4.0 / 3 + 1 + 4.0 / 3 + 1 + 1,
              1e-9);
}

}  // namespace
}  // namespace paceline::planning
