// Compares every default of the optimizers' options with torch::optim's. tests/parity compares them
// with Python's, including those that LibTorch lacks.

#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/training/optim/lr_scheduler.h"
#include "paceline/training/optim/rules/update_rules.h"

namespace paceline::optim {
namespace {

template <class Own, class Torchs>
void expect_same_adam(const Own& own, const Torchs& torchs) {
  EXPECT_EQ(own.lr, torchs.lr());
  EXPECT_EQ(own.betas, torchs.betas());
  EXPECT_EQ(own.eps, torchs.eps());
  EXPECT_EQ(own.weight_decay, torchs.weight_decay());
  EXPECT_FALSE(torchs.amsgrad()) << "paceline::optim has no amsgrad";
}

TEST(Defaults, of_adam_are_torchs) { expect_same_adam(AdamOptions(), torch::optim::AdamOptions()); }

TEST(Defaults, of_adamw_are_torchs) {
  expect_same_adam(AdamWOptions(), torch::optim::AdamWOptions());
  EXPECT_EQ(AdamWOptions().weight_decay, 1e-2);
}

TEST(Defaults, of_sgd_are_torchs) {
  const SGDOptions own;
  const torch::optim::SGDOptions torchs(own.lr);  // LibTorch's SGD has no default rate
  EXPECT_EQ(own.momentum, torchs.momentum());
  EXPECT_EQ(own.dampening, torchs.dampening());
  EXPECT_EQ(own.weight_decay, torchs.weight_decay());
  EXPECT_EQ(own.nesterov, torchs.nesterov());
}

// LibTorch keeps a schedule's options private, so this compares the rates. LibTorch's first step()
// keeps the first rate; Python's and this library's count it.
template <class Any>
double rate_given_alone() {
  return Any({torch::zeros(2)}, 0.25).learning_rate();
}

TEST(Defaults, a_learning_rate_may_be_given_alone) {
  EXPECT_EQ(rate_given_alone<Adam>(), 0.25);
  EXPECT_EQ(rate_given_alone<AdamW>(), 0.25);
  EXPECT_EQ(rate_given_alone<SGD>(), 0.25);
  EXPECT_EQ(rate_given_alone<LAMB>(), 0.25);
  EXPECT_EQ(rate_given_alone<LARS>(), 0.25);
  EXPECT_EQ(Adam({torch::zeros(2)}, 0.25F).learning_rate(), 0.25);
  EXPECT_EQ(Adam({torch::zeros(2)}, {}).learning_rate(), AdamOptions().lr);
}

TEST(Defaults, of_step_lr_are_torchs) {
  const std::vector<at::Tensor> parameters{at::zeros({2})};
  SGD own(parameters, {.lr = 0.5});
  StepLR own_schedule(own, 2);
  torch::optim::SGD torchs(parameters, torch::optim::SGDOptions(0.5));
  torch::optim::StepLR torchs_schedule(torchs, 2);
  torchs_schedule.step();
  for (int step = 0; step < 7; ++step) {
    own_schedule.step();
    torchs_schedule.step();
    const double rate = torchs.param_groups()[0].options().get_lr();
    EXPECT_NEAR(own.learning_rate(), rate, 1e-12 * rate) << "step " << step;
  }
}

// An optimizer without options must do what torch::optim's does without options.
template <class Own, class Torchs>
void expect_torchs_steps() {
  const at::Tensor start = at::linspace(-1, 1, 8);
  const auto trained = [&start](auto make) {
    at::Tensor parameter = start.clone().requires_grad_();
    auto optimizer = make(std::vector<at::Tensor>{parameter});
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      (parameter * parameter).sum().backward();
      optimizer.step();
    }
    return parameter.detach().clone();
  };
  const at::Tensor own = trained([](const auto& parameters) { return Own(parameters); });
  const at::Tensor torchs = trained([](const auto& parameters) { return Torchs(parameters); });
  EXPECT_FALSE(at::equal(own, start));
  EXPECT_TRUE(at::allclose(own, torchs, 1e-6, 1e-7)) << own << torchs;
}

TEST(Defaults, adam_without_options_takes_torchs_steps) {
  expect_torchs_steps<Adam, torch::optim::Adam>();
}

TEST(Defaults, adamw_without_options_takes_torchs_steps) {
  expect_torchs_steps<AdamW, torch::optim::AdamW>();
}

}  // namespace
}  // namespace paceline::optim
