#include "paceline/training/optim/exponential_moving_average.h"

#include <algorithm>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/engine/core/error.h"
#include "paceline/training/optim/rules/update_rules.h"

#include "tests/training/optim/odd_parameters.h"

namespace paceline::optim {
namespace {

TEST(ExponentialMovingAverage, is_the_formula) {
  for (const bool warm_up : {false, true}) {
    const auto parameters = make_odd_parameters();
    SGD sgd(parameters, {.lr = 0.1});
    ExponentialMovingAverage average(parameters, 0.9, warm_up);
    at::Tensor expected;
    for (int step = 0; step < 12; ++step) {
      take_steps(sgd, step, step + 1);
      average.update();
      const at::Tensor weight = parameters[0].detach().to(at::kDouble);
      const double decay = warm_up ? std::min(0.9, (1.0 + step) / (10.0 + step)) : 0.9;
      expected = step == 0 ? weight.clone() : decay * expected + (1 - decay) * weight;
    }
    EXPECT_TRUE(at::allclose(average.state()[0].second.to(at::kDouble), expected, 1e-5, 1e-6));
    EXPECT_EQ(average.state()[0].first, "weight.0");
  }
}

TEST(ExponentialMovingAverage, swapped_in_it_is_what_the_model_computes_with) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const auto parameters = make_odd_parameters({type, at::kFloat, type});
    SGD sgd(parameters, {.lr = 0.1});
    ExponentialMovingAverage average(parameters, 0.5);
    EXPECT_THROW((void)average.swap_in(), Error);
    for (int step = 0; step < 3; ++step) {
      take_steps(sgd, step, step + 1);
      average.update();
    }
    const auto before = copies(parameters);
    {
      const auto swap = average.swap_in();
      EXPECT_TRUE(at::equal(parameters[0], average.state()[0].second.to(type)));
      EXPECT_FALSE(at::equal(parameters[0], before[0]));
      EXPECT_THROW(average.update(), Error);
      EXPECT_THROW((void)average.swap_in(), Error);
    }
    expect_same_bits(parameters, before);
    EXPECT_FALSE(average.is_swapped_in());
  }
}

TEST(ExponentialMovingAverage, resumed_it_continues_bit_for_bit) {
  const auto parameters = make_odd_parameters();
  ExponentialMovingAverage straight(parameters, 0.999, true);
  for (int step = 0; step < 3; ++step) {
    assign(parameters, {random({371, 53}, 60 + step), random({3}, 70), random({4, 3, 3, 3}, 80)});
    straight.update();
  }
  ExponentialMovingAverage resumed(parameters, 0.999, true);
  resumed.set_state(copies(straight.state()));
  straight.update();
  resumed.update();
  EXPECT_EQ(resumed.num_updates(), 4);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_TRUE(at::equal(resumed.state()[i].second, straight.state()[i].second));
  ExponentialMovingAverage other(parameters, 0.5);
  EXPECT_THROW(other.require_compatible(straight.options()), Error);
  resumed.require_compatible(straight.options());
  ExponentialMovingAverage smaller({parameters[0]});
  EXPECT_THROW(smaller.set_state(straight.state()), Error);
}

TEST(ExponentialMovingAverage, a_tensor_given_twice_is_averaged_once_and_bad_options_are_refused) {
  auto parameters = make_odd_parameters();
  parameters.push_back(parameters[0]);
  EXPECT_EQ(ExponentialMovingAverage(parameters).state().size(), 4u);
  EXPECT_THROW(ExponentialMovingAverage(parameters, 1.5), Error);
  EXPECT_THROW(ExponentialMovingAverage({at::zeros({2}, at::kDouble)}), Error);
}

}  // namespace
}  // namespace paceline::optim
