// Compares clipping with formulas, and checks that the bits of the norm do not depend on threads,
// layouts or types.

#include "paceline/training/optim/clip_gradients.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include "paceline/engine/core/error.h"

#include "tests/training/optim/odd_parameters.h"

namespace paceline::optim {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

std::vector<at::Tensor> with_gradients() {
  auto parameters = make_odd_parameters();
  set_gradients(parameters, 0);
  return parameters;
}

// One tensor whose gradient has `count` elements.
std::vector<at::Tensor> single(std::int64_t count) {
  std::vector<at::Tensor> parameters = {at::zeros({count}).set_requires_grad(true)};
  parameters[0].mutable_grad() = random({count}, 5);
  return parameters;
}

double norm_in_double(const std::vector<at::Tensor>& parameters, double power) {
  std::vector<at::Tensor> all;
  for (const auto& parameter : parameters)
    all.push_back(parameter.grad().to(at::kDouble).flatten());
  return at::norm(at::cat(all), power).item<double>();
}

TEST(ClipGradients, norms_of_every_order_are_those_in_double_precision) {
  const auto parameters = with_gradients();
  for (const double power : {0.5, 1.0, 2.0, 3.0, kInfinite}) {
    const double expected = norm_in_double(parameters, power);
    EXPECT_NEAR(grad_norm(parameters, power), expected, 1e-12 * expected) << power;
  }
}

TEST(ClipGradients, the_norms_bits_do_not_depend_on_threads) {
  for (const std::int64_t count : {1, 15, 16, 17, 1023, 1024, 1025, 300001}) {
    const auto parameters = single(count);
    at::set_num_threads(1);
    const double one = grad_norm(parameters);
    at::set_num_threads(2);
    EXPECT_EQ(grad_norm(parameters), one) << count;
    at::set_num_threads(3);
    EXPECT_EQ(grad_norm(parameters), one) << count;
  }
  at::set_num_threads(1);
}

TEST(ClipGradients, the_norms_bits_do_not_depend_on_the_gradients_layout) {
  const auto parameters = with_gradients();
  const double norm = grad_norm(parameters);
  for (const auto& parameter : parameters) {
    at::Tensor other = parameter.grad().transpose(0, parameter.dim() - 1).contiguous();
    parameter.mutable_grad() = other.transpose(0, parameter.dim() - 1);
  }
  EXPECT_EQ(grad_norm(parameters), norm);
}

TEST(ClipGradients, too_large_a_norm_is_scaled_down_by_pytorchs_factor) {
  const auto parameters = with_gradients();
  const auto before = copies({parameters[0].grad(), parameters[1].grad(), parameters[2].grad()});
  const double norm = clip_grad_norm(parameters, 1.5);
  const auto factor = static_cast<float>(1.5 / (norm + 1e-6));
  for (std::size_t i = 0; i < parameters.size(); ++i)
    EXPECT_TRUE(at::equal(parameters[i].grad(), before[i] * factor)) << i;
  EXPECT_NEAR(grad_norm(parameters), 1.5, 1e-5);
}

TEST(ClipGradients, a_norm_below_the_limit_changes_nothing) {
  const auto parameters = with_gradients();
  const at::Tensor before = parameters[0].grad().clone();
  EXPECT_GT(clip_grad_norm(parameters, 1e9), 100);
  EXPECT_TRUE(at::equal(parameters[0].grad(), before));
}

TEST(ClipGradients, a_tensor_given_twice_and_one_without_a_gradient_count_once_and_never) {
  auto parameters = with_gradients();
  parameters[1].mutable_grad() = at::Tensor();
  const double once = grad_norm(parameters);
  parameters.push_back(parameters[0]);
  EXPECT_EQ(grad_norm(parameters), once);
  clip_grad_norm(parameters, once / 2);
  EXPECT_NEAR(grad_norm(parameters), once / 2, 1e-4 * once);
}

TEST(ClipGradients, sixteen_bit_gradients_are_clipped_in_float32) {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    std::vector<at::Tensor> parameters = {at::zeros({3000}, type).set_requires_grad(true)};
    const at::Tensor gradient = random({3000}, 7).to(type);
    parameters[0].mutable_grad() = gradient.clone();
    const double norm = clip_grad_norm(parameters, 1.0);
    const auto factor = static_cast<float>(1.0 / (norm + 1e-6));
    EXPECT_TRUE(at::equal(parameters[0].grad(), (gradient.to(at::kFloat) * factor).to(type)));
  }
}

TEST(ClipGradients, values_are_brought_between_the_limits_and_nan_stays) {
  const auto parameters = with_gradients();
  const at::Tensor expected = parameters[0].grad().clamp(-0.5, 0.5);
  parameters[1].grad()[1] = std::nan("");
  parameters[1].grad()[2] = -kInfinite;
  clip_grad_value(parameters, 0.5);
  EXPECT_TRUE(at::equal(parameters[0].grad(), expected));
  EXPECT_TRUE(std::isnan(parameters[1].grad()[1].item<float>()));
  EXPECT_EQ(parameters[1].grad()[2].item<float>(), -0.5f);
}

TEST(ClipGradients, a_norm_that_is_not_finite_names_the_parameter) {
  for (const double power : {1.0, 2.0, kInfinite}) {
    const auto parameters = with_gradients();
    parameters[2].grad()[1][1][0][2] = std::nan("");
    const at::Tensor before = parameters[0].grad().clone();
    try {
      clip_grad_norm(parameters, 1, power, true);
      FAIL() << "no error for the order " << power;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalid);
      EXPECT_NE(std::string(error.what()).find("parameter 2"), std::string::npos) << error.what();
    }
    EXPECT_TRUE(at::equal(parameters[0].grad(), before));
    EXPECT_TRUE(std::isnan(clip_grad_norm(parameters, 1, power)));
    EXPECT_TRUE(parameters[0].grad().isnan().all().item<bool>());
  }
}

TEST(ClipGradients, bad_arguments_are_refused) {
  auto parameters = with_gradients();
  EXPECT_THROW(grad_norm(parameters, 0), Error);
  EXPECT_THROW(clip_grad_norm(parameters, -1), Error);
  EXPECT_THROW(clip_grad_value(parameters, -1), Error);
  std::vector<at::Tensor> doubles = {at::zeros({2}, at::kDouble).set_requires_grad(true)};
  doubles[0].mutable_grad() = at::ones({2}, at::kDouble);
  EXPECT_THROW(grad_norm(doubles), Error);
}

TEST(ClipGradients, elements_that_share_memory_or_have_gaps_are_refused) {
  for (const at::Tensor& gradient :
       {at::ones({1}).expand({1000}), at::ones({1000, 2}).select(1, 0)}) {
    std::vector<at::Tensor> parameters = {at::zeros({1000}).set_requires_grad(true)};
    parameters[0].mutable_grad() = gradient;
    EXPECT_THROW(clip_grad_norm(parameters, 1), Error);
    EXPECT_THROW(clip_grad_value(parameters, 0.1), Error);
    EXPECT_TRUE(at::equal(gradient, at::ones({1000})));
  }
}

}  // namespace
}  // namespace paceline::optim
