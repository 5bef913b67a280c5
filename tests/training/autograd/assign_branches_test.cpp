#include <algorithm>
#include <limits>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/engine/collectives/group/object_collectives.h"
#include "paceline/training/autograd/branch_functions.h"
#include "paceline/training/tensor/random.h"
#include "paceline/training/tensor/random_state.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using Owners = std::vector<int>;

TEST(AssignBranches, the_most_expensive_goes_first_to_the_rank_with_the_least_work) {
  EXPECT_EQ(assign_branches({1, 5, 2, 4}, 2), (Owners{0, 0, 1, 1}));
  EXPECT_EQ(assign_branches({3, 3, 2, 2, 2}, 2), (Owners{0, 1, 0, 1, 0}));
  EXPECT_EQ(assign_branches({2, 9}, 4), (Owners{1, 0}));
  EXPECT_EQ(assign_branches({2, 9, 1}, 1), (Owners{0, 0, 0}));
  EXPECT_EQ(assign_branches({}, 3), Owners{});
}

TEST(AssignBranches, equal_costs_go_to_the_ranks_in_turns) {
  EXPECT_EQ(assign_branches({1, 1, 1, 1, 1}, 3), (Owners{0, 1, 2, 0, 1}));
}

TEST(AssignBranches, what_is_no_cost_is_refused) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect_error(ErrorCode::kInvalid, {"cost of branch 1 is -1"}, [] {
    assign_branches({1, -1}, 2);
  });
  expect_error(ErrorCode::kInvalid, {"cost of branch 0"}, [&] { assign_branches({nan}, 2); });
  expect_error(ErrorCode::kInvalid, {"0 ranks"}, [] { assign_branches({1}, 0); });
}

std::vector<Branch> small_and_large(const torch::nn::BatchNorm1d& norm) {
  const auto weight = at::ones({128, 128}).requires_grad_();
  return {
      make_branch("norm", norm),
      {"large",
       [weight](const std::vector<at::Tensor>& x) {
         at::Tensor y = at::dropout(x[0].matmul(weight), 0.5, true);
         for (int i = 0; i < 8; ++i) y = at::tanh(y.matmul(weight));
         return y;
       },
       {weight}},
      {"count", [](const std::vector<at::Tensor>& x) { return at::scalar_tensor(x[0].size(0)); }}};
}

TEST(MeasureBranches, every_rank_gets_the_same_costs_and_nothing_changes) {
  harness::run_ranks_ok(3, [](ProcessGroup& own) {
    seed_rank(3);
    const torch::nn::BatchNorm1d norm(128);
    const auto branches = small_and_large(norm);
    const auto x = at::arange(128 * 32, at::kFloat).reshape({32, 128}).requires_grad_();
    const auto mean = norm->running_mean.clone();
    const auto state = random_state().of_rank;
    const auto costs = measure_branches(own, {x}, branches);
    EXPECT_TRUE(at::equal(random_state().of_rank, state));
    EXPECT_TRUE(at::equal(norm->running_mean, mean));
    EXPECT_FALSE(norm->weight.grad().defined());
    EXPECT_FALSE(x.grad().defined());
    EXPECT_FALSE(branches[1].parameters[0].grad().defined());
    ASSERT_EQ(costs.size(), 3u);
    EXPECT_GT(costs[1], costs[2]);
    EXPECT_GT(costs[2], 0);
    const std::string bytes(reinterpret_cast<const char*>(costs.data()),
                            costs.size() * sizeof(double));
    for (const auto& other : all_gather_object(own, bytes)) EXPECT_EQ(other, bytes);
  });
}

TEST(MeasureBranches, a_branch_that_throws_is_named_on_every_rank) {
  harness::run_ranks_ok(2, [](ProcessGroup& own) {
    std::vector<Branch> branches = {{"bad", [&](const std::vector<at::Tensor>& x) {
                                       if (own.rank() == 1) throw std::runtime_error("no luck");
                                       return x[0];
                                     }}};
    expect_error(ErrorCode::kInvalid, {"rank 1", "branch 'bad'", "no luck"},
                 [&] { measure_branches(own, {at::ones({2})}, branches); });
    expect_error(ErrorCode::kInvalid, {"measure_branches", "0 repeats"},
                 [&] { measure_branches(own, {at::ones({2})}, {}, 0); });
  });
}

}  // namespace
}  // namespace paceline
