// Compares LAMB and LARS with the formulas of their papers, in double precision.

#include <cmath>

#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include "paceline/engine/core/error.h"
#include "paceline/training/optim/rules/update_rules.h"

#include "tests/training/optim/odd_parameters.h"

namespace paceline::optim {
namespace {

// `step_of(i, step, w, g)` updates w, in double precision.
template <class StepOf>
void expect_formula(Optimizer& optimizer, const StepOf& step_of) {
  std::vector<at::Tensor> expected;
  for (const auto& parameter : optimizer.parameters())
    expected.push_back(parameter.detach().to(at::kDouble).clone());
  for (int step = 0; step < 10; ++step) {
    set_gradients(optimizer.parameters(), step);
    for (std::size_t i = 0; i < expected.size(); ++i)
      step_of(i, step + 1, expected[i], optimizer.parameters()[i].grad().to(at::kDouble));
    optimizer.step();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_TRUE(at::allclose(optimizer.parameters()[i].to(at::kDouble), expected[i], 1e-5, 2e-6))
          << "step " << step << ", parameter " << i;
    }
  }
}

TEST(LAMB, is_the_papers_formula) {
  for (const bool adapt : {true, false}) {
    const LAMBOptions o{.lr = 1e-2, .weight_decay = 0.05, .adapt = adapt};
    const auto [first, second] = o.betas;
    const double beta1 = first, beta2 = second;  // lambdas capture them
    LAMB lamb(make_odd_parameters(), o);
    std::vector<at::Tensor> m(3, at::zeros({}, at::kDouble)), v(3, at::zeros({}, at::kDouble));
    expect_formula(lamb, [&](std::size_t i, int t, at::Tensor& w, const at::Tensor& g) {
      m[i] = beta1 * m[i] + (1 - beta1) * g;
      v[i] = beta2 * v[i] + (1 - beta2) * g * g;
      const auto u =
          m[i] / (1 - std::pow(beta1, t)) / ((v[i] / (1 - std::pow(beta2, t))).sqrt() + o.eps) +
          o.weight_decay * w;
      w -= adapt ? o.lr * w.norm() / u.norm() * u : o.lr * u;
    });
  }
}

TEST(LARS, is_the_papers_formula) {
  for (const bool adapt : {true, false}) {
    const LARSOptions o{
        .lr = adapt ? 5.0 : 0.01, .weight_decay = 1e-2, .trust_coefficient = 0.01, .adapt = adapt};
    LARS lars(make_odd_parameters(), o);
    std::vector<at::Tensor> v(3, at::zeros({}, at::kDouble));
    expect_formula(lars, [&](std::size_t i, int, at::Tensor& w, const at::Tensor& g) {
      const auto local =
          adapt ? o.trust_coefficient * w.norm() / (g.norm() + o.weight_decay * w.norm())
                : at::ones({}, at::kDouble);
      v[i] = o.momentum * v[i] + o.lr * local * (g + o.weight_decay * w);
      w -= v[i];
    });
  }
}

TEST(LAMB, a_parameter_of_zeros_takes_a_step_without_the_ratio) {
  std::vector<at::Tensor> parameters = {at::zeros({5}).set_requires_grad(true)};
  LAMB lamb(parameters, {.lr = 0.1});
  parameters[0].mutable_grad() = at::ones({5});
  lamb.step();
  EXPECT_TRUE(at::allclose(parameters[0], at::full({5}, -0.1), 1e-4));
  parameters[0].mutable_grad() = at::Tensor();
  const at::Tensor before = parameters[0].detach().clone();
  lamb.step();
  EXPECT_TRUE(at::equal(parameters[0], before));
}

TEST(LAMB, its_bits_do_not_depend_on_threads) {
  const auto run = [](int threads) {
    at::set_num_threads(threads);
    std::vector<at::Tensor> parameters = {random({300, 401}, 1).set_requires_grad(true)};
    LAMB lamb(parameters, {.lr = 0.1, .weight_decay = 0.1});
    take_steps(lamb, 0, 3);
    return parameters;
  };
  const auto one = run(1);
  expect_same_bits(run(2), one);
  expect_same_bits(run(3), one);
  at::set_num_threads(1);
}

TEST(LAMB, bad_options_are_refused) {
  EXPECT_THROW(LAMB(make_odd_parameters(), {.betas = {0.9, 1.0}}), Error);
  EXPECT_THROW(LAMB(make_odd_parameters(), {.weight_decay = -1}), Error);
  EXPECT_THROW(LARS(make_odd_parameters(), {.momentum = 1}), Error);
  EXPECT_THROW(LARS(make_odd_parameters(), {.trust_coefficient = 0}), Error);
}

}  // namespace
}  // namespace paceline::optim
