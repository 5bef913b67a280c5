#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/engine/core/error.h"
#include "paceline/training/tensor/compute_settings.h"
#include "paceline/training/tensor/libtorch_version.h"

namespace paceline {
namespace {

at::ScalarType type_of_product() {
  return at::mm(at::ones({4, 4}), at::ones({4, 4})).scalar_type();
}

TEST(Autocast, products_are_in_16_bits_inside_and_in_float32_outside) {
  EXPECT_EQ(type_of_product(), at::kFloat);
  {
    const Autocast autocast(at::kBFloat16);
    EXPECT_EQ(type_of_product(), at::kBFloat16);
    {
      const Autocast off(at::kBFloat16, false);
      EXPECT_EQ(type_of_product(), at::kFloat);
    }
    EXPECT_EQ(type_of_product(), at::kBFloat16);
  }
  EXPECT_EQ(type_of_product(), at::kFloat);
}

TEST(Autocast, gradients_of_float32_parameters_are_float32) {
  torch::nn::Linear linear(8, 3);
  at::Tensor loss;
  {
    const Autocast autocast(at::kBFloat16);
    const at::Tensor output = linear(at::ones({2, 8}));
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    loss = output.to(at::kFloat).square().mean();
  }
  loss.backward();
  EXPECT_EQ(linear->weight.grad().scalar_type(), at::kFloat);
  EXPECT_GT(linear->weight.grad().abs().sum().item<float>(), 0);
}

// The cached copy of a weight must not outlast a change of the weight.
TEST(Autocast, a_changed_weight_is_seen_by_the_next_pass) {
  torch::nn::Linear linear(torch::nn::LinearOptions(2, 1).bias(false));
  const auto output = [&] {
    const Autocast autocast(at::kBFloat16);
    return linear(at::ones({1, 2})).to(at::kFloat).item<float>();
  };
  const at::NoGradGuard no_grad;
  linear->weight.fill_(1);
  EXPECT_EQ(output(), 2);
  linear->weight.fill_(3);
  EXPECT_EQ(output(), 6);
}

TEST(Autocast, a_type_that_the_cpu_lacks_is_refused) {
  EXPECT_THROW(Autocast autocast(at::kDouble), Error);
  if (CpuAutocast::kHasHalf) {
    const Autocast autocast(at::kHalf);
    EXPECT_EQ(type_of_product(), at::kHalf);
  } else {
    EXPECT_THROW(Autocast autocast(at::kHalf), Error);
  }
  EXPECT_EQ(type_of_product(), at::kFloat);
}

}  // namespace
}  // namespace paceline
