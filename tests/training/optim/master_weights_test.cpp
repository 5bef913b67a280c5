// Compares 16-bit parameters and gradients with float32 masters to a float32 optimizer whose result
// is rounded.

#include <cmath>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/optim_kernels/kernels.h"
#include "paceline/training/optim/rules/update_rules.h"

#include "tests/training/optim/odd_parameters.h"

namespace paceline::optim {
namespace {

constexpr std::array<at::ScalarType, 2> kTypes = {at::kBFloat16, at::kHalf};

std::vector<at::Tensor> float_twins(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> twins;
  for (const auto& parameter : parameters)
    twins.push_back(parameter.detach().to(at::kFloat).set_requires_grad(true));
  return twins;
}

TEST(MasterWeights, a_16_bit_parameter_is_the_rounded_float32_one) {
  for (const auto type : kTypes) {
    const auto parameters = make_odd_parameters({type, type, type});
    const auto masters = float_twins(parameters);
    Adam rounded(parameters, {.lr = 1e-3, .weight_decay = 1e-2});
    Adam exact(masters, {.lr = 1e-3, .weight_decay = 1e-2});
    for (int step = 0; step < 10; ++step) {
      set_gradients(parameters, step);
      for (std::size_t i = 0; i < masters.size(); ++i)
        masters[i].mutable_grad() = parameters[i].grad().to(at::kFloat);
      rounded.step();
      exact.step();
      for (std::size_t i = 0; i < masters.size(); ++i)
        ASSERT_TRUE(at::equal(parameters[i], masters[i].to(type))) << "parameter " << i;
    }
    EXPECT_EQ(rounded.num_state_bytes() * 2, exact.num_state_bytes() * 3);
  }
}

TEST(MasterWeights, steps_too_small_for_16_bits_add_up) {
  std::vector<at::Tensor> parameters = {at::ones({8}, at::kBFloat16).set_requires_grad(true)};
  SGD sgd(parameters, {.lr = 1e-4});
  for (int step = 0; step < 100; ++step) {
    parameters[0].mutable_grad() = at::ones({8}, at::kBFloat16);
    sgd.step();
  }
  EXPECT_TRUE(at::equal(parameters[0], at::full({8}, 0.99).to(at::kBFloat16)));
}

TEST(MasterWeights, are_part_of_the_state_and_resume_bit_for_bit) {
  const auto make = [] { return make_odd_parameters({at::kBFloat16, at::kFloat, at::kHalf}); };
  Adam straight(make(), {.lr = 1e-3});
  take_steps(straight, 0, 4);
  const NamedTensors saved = copies(straight.state());
  ASSERT_EQ(saved.size(), 9u);
  EXPECT_EQ(saved[6].first, "master.0");
  EXPECT_EQ(saved[7].first, "master.2");
  EXPECT_TRUE(saved[7].second.is_contiguous(at::MemoryFormat::ChannelsLast));
  Adam resumed(make(), {.lr = 1e-3});
  assign(resumed.parameters(), straight.parameters());
  resumed.set_state(saved);
  take_steps(straight, 4, 8);
  take_steps(resumed, 4, 8);
  expect_same_bits(resumed.parameters(), straight.parameters());
  const auto again = resumed.state();
  for (std::size_t i = 0; i < again.size(); ++i)
    EXPECT_TRUE(at::equal(again[i].second, straight.state()[i].second)) << again[i].first;
}

TEST(MasterWeights, follow_a_parameter_that_was_loaded_or_averaged) {
  const auto parameters = make_odd_parameters({at::kBFloat16, at::kBFloat16, at::kBFloat16});
  SGD sgd(parameters, {.lr = 1e-3});
  take_steps(sgd, 0, 2);
  const at::Tensor loaded = random({371, 53}, 50).to(at::kBFloat16);
  assign({parameters[0]}, {loaded});
  for (const auto& parameter : parameters) parameter.mutable_grad() = at::zeros_like(parameter);
  sgd.step();
  EXPECT_TRUE(at::equal(parameters[0], loaded));
  EXPECT_TRUE(at::equal(sgd.state()[0].second.to(at::kBFloat16), loaded));
}

TEST(MasterWeights, gradients_may_have_any_of_the_three_types) {
  for (const auto gradient_type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    std::vector<at::Tensor> parameters = {at::zeros({2000}).set_requires_grad(true),
                                          at::zeros({2000}, at::kHalf).set_requires_grad(true)};
    const at::Tensor gradient = random({2000}, 3).to(gradient_type);
    for (auto& parameter : parameters) parameter.mutable_grad() = gradient;
    SGD sgd(parameters, {.lr = 0.5});
    sgd.step();
    const at::Tensor expected = gradient.to(at::kFloat) * -0.5;
    EXPECT_TRUE(at::equal(parameters[0], expected));
    EXPECT_TRUE(at::equal(parameters[1], expected.to(at::kHalf)));
  }
  std::vector<at::Tensor> parameters = {at::zeros({3}).set_requires_grad(true)};
  parameters[0].mutable_grad() = at::zeros({3}, at::kDouble);
  SGD sgd(parameters);
  EXPECT_THROW(sgd.step(), Error);
}

// Converts every 16-bit value to float32 and back, and compares with LibTorch's conversions.
TEST(MasterWeights, conversions_are_libtorchs_for_every_value) {
  for (const auto type : kTypes) {
    const Dtype dtype = type == at::kHalf ? Dtype::kFloat16 : Dtype::kBfloat16;
    const at::Tensor bits = at::arange(65536, at::kInt).to(at::kShort);
    const at::Tensor values = at::from_blob(bits.data_ptr(), {65536}, type);
    at::Tensor wide = at::empty({65536}, at::kFloat);
    widen(dtype, values.data_ptr(), wide.data_ptr<float>(), 65536);
    EXPECT_TRUE(at::allclose(wide, values.to(at::kFloat), 0, 0, true));
    at::Tensor back = at::empty({65536}, type);
    narrow(dtype, wide.data_ptr<float>(), back.data_ptr(), 65536);
    const at::Tensor is_number = wide.isnan().logical_not();
    EXPECT_TRUE(at::equal(back.masked_select(is_number), values.masked_select(is_number)));
    EXPECT_TRUE(back.isnan().equal(wide.isnan()));
  }
}

}  // namespace
}  // namespace paceline::optim
