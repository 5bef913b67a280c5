#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "paceline/training/parallel/reducer/gradient_buckets.h"

namespace paceline {
namespace {

std::vector<at::Tensor> sized(const std::vector<std::int64_t>& counts,
                              at::ScalarType type = at::kFloat) {
  std::vector<at::Tensor> tensors;
  for (const auto count : counts) tensors.push_back(at::zeros({count}, type));
  return tensors;
}

std::vector<std::vector<std::size_t>> members(const std::vector<BucketPlan>& plan) {
  std::vector<std::vector<std::size_t>> result;
  for (const auto& bucket : plan) result.push_back(bucket.parameters);
  return result;
}

// Plans buckets from the last parameter to the first.
std::vector<BucketPlan> plan_backwards(const std::vector<at::Tensor>& parameters,
                                       const BucketLimits& limits) {
  std::vector<std::size_t> order;
  for (std::size_t i = parameters.size(); i-- > 0;) order.push_back(i);
  return plan_buckets(parameters, order, limits);
}

using Members = std::vector<std::vector<std::size_t>>;

TEST(BucketPlan, closes_a_bucket_at_its_limit) {
  const BucketLimits limits{.first_bytes = 400, .cap_bytes = 1000};
  EXPECT_EQ(members(plan_backwards(sized({10, 100, 200, 50, 60}), limits)),
            (Members{{4, 3}, {2, 1}, {0}}));
}

TEST(BucketPlan, follows_the_order_that_is_given) {
  EXPECT_EQ(members(plan_buckets(sized({8, 8, 8, 8}), {2, 0, 3}, {.first_bytes = 1})),
            (Members{{2}, {0, 3}}));
}

TEST(BucketPlan, one_parameter_above_the_limit_is_a_bucket_of_its_own) {
  EXPECT_EQ(
      members(plan_backwards(sized({8, 1'000'000, 8}), {.first_bytes = 16, .cap_bytes = 1024})),
      (Members{{2}, {1}, {0}}));
}

TEST(BucketPlan, types_do_not_share_a_bucket) {
  auto parameters = sized({8, 8});
  parameters.push_back(at::zeros({8}, at::kDouble));
  parameters.push_back(at::zeros({8}, at::kFloat));
  const auto plan = plan_backwards(parameters, {});
  ASSERT_EQ(plan.size(), 2u);
  EXPECT_EQ(members(plan), (Members{{3, 1, 0}, {2}}));
}

TEST(BucketPlan, gradients_begin_on_cache_lines_and_do_not_overlap) {
  const auto parameters = sized({1, 17, 16, 33});
  const auto plan = plan_backwards(parameters, {});
  ASSERT_EQ(plan.size(), 1u);
  std::int64_t end = 0;
  for (std::size_t i = 0; i < plan[0].parameters.size(); ++i) {
    EXPECT_EQ(plan[0].layout.offset(i) % 16, 0);
    EXPECT_GE(plan[0].layout.offset(i), end);
    end = plan[0].layout.offset(i) + parameters[plan[0].parameters[i]].numel();
  }
  EXPECT_GE(plan[0].layout.count(), end);
}

TEST(BucketPlan, no_parameters_no_buckets) { EXPECT_TRUE(plan_backwards({}, {}).empty()); }

}  // namespace
}  // namespace paceline
