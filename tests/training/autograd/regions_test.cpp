// Compares gradients in float64 with difference quotients of the losses of all ranks.

#include "paceline/training/autograd/regions.h"

#include <functional>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/training/autograd/differentiable_collectives.h"
#include "paceline/training/tensor/collectives.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::run_ranks_ok;

GroupPtr borrowed(ProcessGroup& group) {
  return {&group, [](ProcessGroup*) {}};
}

struct RegionCase {
  const char* name;
  bool replicated_input, replicated_output;
  std::function<at::Tensor(const GroupPtr&, const at::Tensor&)> apply;
};

const std::vector<RegionCase>& all_cases() {
  static const std::vector<RegionCase> cases = {
      {"copy_to_region", true, false, copy_to_region},
      {"reduce_from_region", false, true, reduce_from_region},
      {"scatter_to_region", true, false,
       [](const auto& group, const auto& x) { return scatter_to_region(group, x, 1); }},
      {"gather_from_region", false, true,
       [](const auto& group, const auto& x) { return gather_from_region(group, x, -1); }},
      {"all_reduce_sum", false, false, all_reduce_sum},
      {"all_gather_autograd", false, false,
       [](const auto& group, const auto& x) { return all_gather_autograd(group, x, 1); }},
      {"reduce_scatter_autograd", false, false,
       [](const auto& group, const auto& x) { return reduce_scatter_autograd(group, x, -2); }},
      {"all_to_all_autograd", false, false,
       [](const auto& group, const auto& x) { return all_to_all_autograd(group, x, 1, 2); }},
  };
  return cases;
}

// A tensor that depends on `rank` only.
at::Tensor values(int rank, at::IntArrayRef sizes, double phase) {
  std::int64_t count = 1;
  for (const auto size : sizes) count *= size;
  return (at::arange(count, at::kDouble) * 0.7 + phase + 3.1 * rank).sin().reshape(sizes);
}

// This rank's loss; not linear, so that second derivatives are not zero.
at::Tensor loss_of(const RegionCase& region, const GroupPtr& group, const at::Tensor& input) {
  const auto output = region.apply(group, input);
  const int seed = region.replicated_output ? 0 : group->rank();
  return (output.sin() * values(seed, output.sizes(), 0.3)).sum() + 0.1 * output.pow(2).sum();
}

double total_loss(const RegionCase& region, const GroupPtr& group, const at::Tensor& input) {
  const double own = loss_of(region, group, input).item<double>();
  const double sum = all_reduce_value(*group, own);
  return region.replicated_output ? own : sum;
}

// The derivative of the loss of all ranks when each rank's `input` moves along `direction`.
double slope(const RegionCase& region, const GroupPtr& group, const at::Tensor& input,
             const at::Tensor& direction) {
  constexpr double kStep = 1e-6;
  at::NoGradGuard no_gradients;
  return (total_loss(region, group, input + kStep * direction) -
          total_loss(region, group, input - kStep * direction)) /
         (2 * kStep);
}

class RegionsTest : public testing::TestWithParam<int> {};

TEST_P(RegionsTest, gradients_are_slopes) {
  const int world_size = GetParam();
  run_ranks_ok(world_size, [&](ProcessGroup& own) {
    const auto group = borrowed(own);
    const std::vector<std::int64_t> sizes = {2, world_size * 2, 3};
    for (const RegionCase& region : all_cases()) {
      const int seed = region.replicated_input ? 0 : own.rank();
      const auto input = values(seed, sizes, 0).requires_grad_();
      loss_of(region, group, input).backward();
      // First only one rank's input moves, for each rank in turn; then all inputs move together.
      for (int moving = 0; moving <= world_size; ++moving) {
        const bool moves = region.replicated_input || moving == world_size || moving == own.rank();
        const auto direction = values(seed, sizes, 1.0 + moving) * (moves ? 1.0 : 0.0);
        const double expected = slope(region, group, input.detach(), direction);
        const double mine = (input.grad() * direction).sum().item<double>();
        const double sum = all_reduce_value(own, mine);
        EXPECT_NEAR(region.replicated_input ? mine : sum, expected, 1e-6 * world_size * 10)
            << region.name << ", " << world_size << " ranks";
      }
    }
  });
}

TEST_P(RegionsTest, there_are_second_derivatives) {
  const int world_size = GetParam();
  run_ranks_ok(world_size, [&](ProcessGroup& own) {
    const auto group = borrowed(own);
    for (const RegionCase& region : all_cases()) {
      const std::vector<std::int64_t> sizes = {1, world_size, 2};
      const int seed = region.replicated_input ? 0 : own.rank();
      const auto direction = values(seed, sizes, 1.0);
      // Compares the derivative of the gradient along `direction` with a difference quotient.
      const auto gradient_at = [&](const at::Tensor& point) {
        const auto input = point.detach().requires_grad_();
        loss_of(region, group, input).backward();
        return input.grad();
      };
      const auto input = values(seed, sizes, 0).requires_grad_();
      const auto first =
          torch::autograd::grad({loss_of(region, group, input)}, {input}, {}, true, true)[0];
      const auto second = torch::autograd::grad({(first * direction).sum()}, {input})[0];
      constexpr double kStep = 1e-6;
      const auto expected = (gradient_at(input.detach() + kStep * direction) -
                             gradient_at(input.detach() - kStep * direction)) /
                            (2 * kStep);
      EXPECT_LT((second - expected).abs().max().item<double>(), 1e-6 * 100)
          << region.name << ", " << world_size << " ranks";
    }
  });
}

// If one rank's input, or an expanded gradient from sum(), has another memory layout, the results
// do not change.
TEST_P(RegionsTest, one_rank_may_have_inputs_and_gradients_of_another_layout) {
  const int world_size = GetParam();
  run_ranks_ok(world_size, [&](ProcessGroup& own) {
    const auto group = borrowed(own);
    const std::vector<std::int64_t> sizes = {2, world_size * 2, 3};
    for (const RegionCase& region : all_cases()) {
      const auto plain = values(region.replicated_input ? 0 : own.rank(), sizes, 0);
      const auto input = plain.clone().requires_grad_();
      const auto output = region.apply(group, input);
      (output * at::ones_like(output)).sum().backward();
      const bool is_odd = own.rank() == world_size - 1;
      const auto other =
          (is_odd ? plain.transpose(0, 2).contiguous().transpose(0, 2) : plain.clone())
              .requires_grad_();
      const auto other_output = region.apply(group, other);
      (is_odd ? other_output.sum() : (other_output * at::ones_like(other_output)).sum()).backward();
      EXPECT_TRUE(at::equal(other_output, output)) << region.name;
      EXPECT_TRUE(at::equal(other.grad(), input.grad())) << region.name;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, RegionsTest, testing::Range(1, 9));

TEST(Regions, values_forward) {
  run_ranks_ok(3, [](ProcessGroup& own) {
    const auto group = borrowed(own);
    const int rank = own.rank();
    const auto mine = at::arange(6, at::kDouble).reshape({2, 3}) + 10 * rank;
    const auto sum = at::arange(6, at::kDouble).reshape({2, 3}) * 3 + 30;
    EXPECT_TRUE(at::equal(copy_to_region(group, mine), mine));
    EXPECT_TRUE(at::equal(reduce_from_region(group, mine), sum));
    EXPECT_TRUE(at::equal(scatter_to_region(group, mine, 1), mine.narrow(1, rank, 1)));
    const auto gathered = gather_from_region(group, mine, 1);
    EXPECT_TRUE(at::equal(gathered.narrow(1, 3 * rank, 3), mine));
    EXPECT_TRUE(at::equal(reduce_scatter_autograd(group, mine, 1), sum.narrow(1, rank, 1)));
    const auto exchanged = all_to_all_autograd(group, mine, 1, 0);
    EXPECT_EQ(exchanged.sizes(), (std::vector<std::int64_t>{6, 1}));
    EXPECT_EQ(exchanged[2][0].item<double>(), 10 + rank) << "from rank 1";
  });
}

// A linear layer cut by columns, followed by one cut by rows, computes the same as the whole
// layers.
TEST(Regions, a_pair_of_divided_layers_equals_the_whole) {
  for (const int world_size : {1, 2, 4}) {
    run_ranks_ok(world_size, [&](ProcessGroup& own) {
      const auto group = borrowed(own);
      const auto input = values(0, {5, 6}, 0).requires_grad_();
      const auto first = values(0, {6, 8}, 1).requires_grad_();
      const auto second = values(0, {8, 3}, 2).requires_grad_();
      at::tanh(input.matmul(first)).matmul(second).pow(2).sum().backward();
      const auto part = [&](const at::Tensor& whole, int dim) {
        const auto size = whole.size(dim) / world_size;
        return whole.detach().narrow(dim, own.rank() * size, size).clone().requires_grad_();
      };
      const auto own_input = input.detach().clone().requires_grad_();
      const auto own_first = part(first, 1), own_second = part(second, 0);
      const auto hidden = at::tanh(copy_to_region(group, own_input).matmul(own_first));
      reduce_from_region(group, hidden.matmul(own_second)).pow(2).sum().backward();
      const auto close = [](const at::Tensor& a, const at::Tensor& b) {
        return at::allclose(a, b, 1e-12, 1e-12);
      };
      EXPECT_TRUE(close(own_input.grad(), input.grad()));
      EXPECT_TRUE(close(own_first.grad(), part(first.grad(), 1)));
      EXPECT_TRUE(close(own_second.grad(), part(second.grad(), 0)));
    });
  }
}

TEST(Regions, what_does_not_divide_is_named_with_rank_and_shape) {
  run_ranks_ok(2, [](ProcessGroup& own) {
    const auto group = borrowed(own);
    const std::string rank = "rank " + std::to_string(own.rank());
    const auto odd = at::zeros({4, 3});
    expect_error(ErrorCode::kInvalid,
                 {rank, "scatter_to_region", "dimension 1 of a tensor of [4, 3]", "2 ranks"},
                 [&] { scatter_to_region(group, odd, 1); });
    expect_error(ErrorCode::kInvalid, {rank, "reduce_scatter_autograd", "[4, 3]"},
                 [&] { reduce_scatter_autograd(group, odd, -1); });
    expect_error(ErrorCode::kInvalid, {rank, "all_to_all_autograd", "[4, 3]"},
                 [&] { all_to_all_autograd(group, odd, 1, 0); });
    expect_error(ErrorCode::kInvalid, {rank, "gather_from_region", "no dimension 2", "[4, 3]"},
                 [&] { gather_from_region(group, odd, 2); });
    expect_error(ErrorCode::kInvalid, {rank, "copy_to_region", "undefined"},
                 [&] { copy_to_region(group, {}); });
    expect_error(ErrorCode::kInvalid, {"all_reduce_sum", "is not a member"},
                 [&] { all_reduce_sum(nullptr, odd); });
  });
}

TEST(Regions, ranks_with_other_shapes_are_told_of_both) {
  const auto results = harness::run_ranks(
      2, [](ProcessGroup& own) { reduce_from_region(borrowed(own), at::zeros({2 + own.rank()})); });
  for (const auto& result : results) {
    ASSERT_TRUE(result.error);
    EXPECT_NE(std::string(result.error->what()).find("3"), std::string::npos);
  }
}

}  // namespace
}  // namespace paceline
