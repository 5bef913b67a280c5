// The route of a call between ranks that share memory, and that explain() names the route that is
// taken.

#include <algorithm>
#include <utility>

#include <gmock/gmock.h>

#include "paceline/engine/collectives/backends/paceline/shared_executor.h"

#include "tests/harness/says.h"

namespace paceline {
namespace {

using harness::Says;

using Method = SharedRoute::Method;

constexpr std::size_t kKiB = 1024;

Method method_of(const SharedTerms& terms, std::size_t bytes, Op op = Op::kAllReduce) {
  return choose_route(terms, {op, Dtype::kUint8, bytes}).method;
}

TEST(SharedRoute, goes_by_size) {
  const SharedTerms terms{.world_size = 4};
  EXPECT_EQ(method_of(terms, 0), Method::kTiny);
  EXPECT_EQ(method_of(terms, 4 * kKiB), Method::kTiny);
  EXPECT_EQ(method_of(terms, 4 * kKiB + 1), Method::kSmall);
  EXPECT_EQ(method_of(terms, 16 * kKiB), Method::kSmall);
  EXPECT_EQ(method_of(terms, 16 * kKiB + 1), Method::kLarge);
  EXPECT_EQ(method_of(terms, 1, Op::kAllGatherV), Method::kLarge);
}

TEST(SharedRoute, ranks_that_share_cores_stage_more) {
  const SharedTerms terms{.world_size = 4, .shares_cores = true};
  EXPECT_EQ(method_of(terms, 32 * kKiB), Method::kTiny);
  EXPECT_EQ(method_of(terms, 32 * kKiB + 1), Method::kLarge);
}

TEST(SharedRoute, a_block_for_each_of_many_ranks_may_be_too_large_for_one_piece) {
  const std::size_t most = staged_piece_count(Op::kAllToAll, Dtype::kUint8, 4096);
  EXPECT_EQ(method_of({.world_size = 4096}, most, Op::kAllToAll), Method::kTiny);
  EXPECT_EQ(method_of({.world_size = 4096}, most + 1, Op::kAllToAll), Method::kLarge);
}

TEST(SharedRoute, one_shot_is_for_two_ranks_and_for_little) {
  const auto is_one_shot = [](int world, std::size_t bytes, Op op = Op::kAllReduce) {
    return choose_route({.world_size = world}, {op, Dtype::kUint8, bytes}).is_one_shot;
  };
  EXPECT_TRUE(is_one_shot(3, 8 * kKiB));
  EXPECT_FALSE(is_one_shot(3, 8 * kKiB + 1));
  EXPECT_TRUE(is_one_shot(2, 64 << 20));
  EXPECT_FALSE(is_one_shot(2, 8, Op::kReduce));
}

TEST(SharedRoute, explain_tells_of_the_way_that_is_taken) {
  const auto told = [](int world, std::size_t bytes) {
    return explain_route({.world_size = world}, {Op::kAllReduce, Dtype::kUint8, bytes});
  };
  EXPECT_THAT(told(3, 64), Says("plan.staged", "one_shot", 4));
  EXPECT_THAT(told(2, 1 << 20), Says("plan.in_place", "one_shot "));
  EXPECT_THAT(told(3, 6 * kKiB), Says("plan.in_place", "one_shot "));
  EXPECT_THAT(told(3, 1 << 20), Says("plan.in_place", ""));
}

std::size_t elements_moved(const SharedPlan& plan) {
  std::size_t most = 0;
  for (const Step& step : plan.staged.steps) most = std::max(most, step.count);
  return most;
}

// Far more kinds of calls than places for plans: plans that share a place replace each other.
TEST(SharedPlans, each_form_has_its_own_plan_however_many_there_are) {
  const SharedTerms terms{.world_size = 3};
  SharedPlans plans(terms, 1);
  for (const int round : {1, 2}) {
    for (std::size_t count = 1; count <= 1000; ++count) {
      for (const auto& [op, root] : {std::pair(Op::kAllReduce, 0), std::pair(Op::kBroadcast, 1),
                                     std::pair(Op::kBroadcast, 2)}) {
        const Collective call{.op = op, .dtype = Dtype::kFloat64, .root = root, .count = count};
        const SharedPlan& plan = plans.find(call);
        const SharedRoute route = choose_route(terms, {op, call.dtype, count});
        ASSERT_EQ(plan.route.method, route.method) << "round " << round << ", " << count;
        ASSERT_EQ(plan.route.is_one_shot, route.is_one_shot);
        ASSERT_EQ(elements_moved(plan), count);
        ASSERT_EQ(plan.staged.first_meeting, root == 2 ? 0u : 1u);  // this rank contributes nothing
      }
    }
  }
}

TEST(SharedPlans, an_element_type_is_part_of_the_form) {
  const SharedTerms terms{.world_size = 2};
  SharedPlans plans(terms, 0);
  Collective call{.op = Op::kAllReduce, .dtype = Dtype::kUint8, .count = 3000};
  EXPECT_EQ(plans.find(call).route.method, Method::kTiny);
  call.dtype = Dtype::kFloat64;
  EXPECT_EQ(plans.find(call).route.method, Method::kLarge);
  EXPECT_TRUE(plans.find(call).staged.steps.empty());
}

}  // namespace
}  // namespace paceline
