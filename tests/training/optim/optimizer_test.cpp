// Compares every optimizer with LibTorch's own: the same start, the same gradients, 20 steps.

#include <cmath>
#include <functional>
#include <initializer_list>
#include <limits>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/engine/core/error.h"
#include "paceline/training/optim/libtorch_optimizer.h"
#include "paceline/training/optim/lr_scheduler.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/optim/rules/update_rules.h"

#include "tests/harness/memory_pages.h"

namespace paceline::optim {
namespace {

std::vector<at::Tensor> make_parameters() {
  torch::manual_seed(1);
  std::vector<at::Tensor> parameters = {torch::randn({37, 5}), torch::randn({3}),
                                        torch::randn({4, 3, 3, 3})};
  parameters[2] = parameters[2].contiguous(at::MemoryFormat::ChannelsLast);
  for (auto& parameter : parameters) parameter.set_requires_grad(true);
  return parameters;
}

void set_gradients(std::vector<at::Tensor>& parameters, int step) {
  torch::manual_seed(100 + step);
  for (auto& parameter : parameters) parameter.mutable_grad() = torch::randn(parameter.sizes());
}

using MakeReference =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;
using MakeFused = std::function<std::unique_ptr<Optimizer>(std::vector<at::Tensor>)>;

// Parameter 1 gets no gradient before step `first_late`. If that is not 0, it gets none in step 12
// either.
void expect_same_steps(const MakeReference& make_reference, const MakeFused& make_fused,
                       int first_late = 0) {
  auto expected = make_parameters();
  auto fused_parameters = make_parameters();
  const auto reference = make_reference(expected);
  const auto fused = make_fused(fused_parameters);
  for (int step = 0; step < 20; ++step) {
    set_gradients(expected, step);
    set_gradients(fused_parameters, step);
    if (step < first_late || (first_late > 0 && step == 12))
      expected[1].mutable_grad() = fused_parameters[1].mutable_grad() = at::Tensor();
    reference->step();
    fused->step();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_TRUE(at::allclose(fused_parameters[i], expected[i], 1e-5, 2e-6))
          << "step " << step << ", parameter " << i;
    }
  }
}

TEST(Optimizer, adam_equals_torchs) {
  for (const double decay : {0.0, 0.005}) {
    expect_same_steps(
        [&](auto p) {
          return std::make_unique<torch::optim::Adam>(
              p, torch::optim::AdamOptions(1e-2).weight_decay(decay));
        },
        [&](auto p) {
          return std::make_unique<Adam>(p, AdamOptions{.lr = 1e-2, .weight_decay = decay});
        });
  }
}

TEST(Optimizer, adamw_equals_torchs) {
  expect_same_steps(
      [](auto p) {
        return std::make_unique<torch::optim::AdamW>(
            p, torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
      },
      [](auto p) {
        return std::make_unique<AdamW>(p, AdamWOptions{.lr = 1e-2, .weight_decay = 0.1});
      });
}

TEST(Optimizer, sgd_equals_torchs) {
  for (const auto& [momentum, dampening, nesterov] :
       {std::tuple{0.0, 0.0, false}, {0.9, 0.0, false}, {0.9, 0.3, false}, {0.9, 0.0, true}}) {
    expect_same_steps(
        [&, m = momentum, d = dampening, n = nesterov](auto p) {
          return std::make_unique<torch::optim::SGD>(
              p, torch::optim::SGDOptions(0.05).momentum(m).dampening(d).nesterov(n).weight_decay(
                     1e-3));
        },
        [&, m = momentum, d = dampening, n = nesterov](auto p) {
          return std::make_unique<SGD>(
              p,
              SGDOptions{
                  .lr = 0.05, .momentum = m, .dampening = d, .weight_decay = 1e-3, .nesterov = n});
        });
  }
}

TEST(Optimizer, a_parameter_whose_gradients_come_later_is_in_its_own_first_step_then) {
  expect_same_steps(
      [](auto p) {
        return std::make_unique<torch::optim::Adam>(p, torch::optim::AdamOptions(1e-2));
      },
      [](auto p) { return std::make_unique<Adam>(p, AdamOptions{.lr = 1e-2}); }, 5);
  expect_same_steps(
      [](auto p) {
        return std::make_unique<torch::optim::AdamW>(
            p, torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
      },
      [](auto p) {
        return std::make_unique<AdamW>(p, AdamWOptions{.lr = 1e-2, .weight_decay = 0.1});
      },
      5);
  expect_same_steps(
      [](auto p) {
        return std::make_unique<torch::optim::SGD>(
            p, torch::optim::SGDOptions(0.05).momentum(0.9).dampening(0.5));
      },
      [](auto p) {
        return std::make_unique<SGD>(p, SGDOptions{.lr = 0.05, .momentum = 0.9, .dampening = 0.5});
      },
      5);
}

// LibTorch's parameters() lists a tied weight once for each of its names; Python's lists it once.
TEST(Optimizer, a_tensor_that_is_given_twice_takes_one_step) {
  auto expected = make_parameters();
  torch::optim::Adam reference(expected, torch::optim::AdamOptions(1e-2));
  auto tied = make_parameters();
  Adam fused({tied[0], tied[1], tied[0], tied[2]}, {.lr = 1e-2});
  EXPECT_EQ(fused.parameters().size(), 3u);
  for (int step = 0; step < 3; ++step) {
    set_gradients(expected, step);
    set_gradients(tied, step);
    reference.step();
    fused.step();
  }
  for (std::size_t i = 0; i < tied.size(); ++i)
    EXPECT_TRUE(at::allclose(tied[i], expected[i], 1e-5, 2e-6)) << "parameter " << i;
}

TEST(Optimizer, restored_state_continues_bit_for_bit) {
  auto straight = make_parameters();
  Adam whole(straight, {.lr = 1e-2});
  auto first = make_parameters();
  Adam before(first, {.lr = 1e-2});
  for (int step = 0; step < 5; ++step) {
    set_gradients(straight, step);
    set_gradients(first, step);
    if (step < 3) straight[1].mutable_grad() = first[1].mutable_grad() = at::Tensor();
    whole.step();
    before.step();
  }
  auto second = make_parameters();
  Adam after(second, {.lr = 1e-2});
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < second.size(); ++i) second[i].copy_(first[i]);
  const auto saved = before.state();
  ASSERT_EQ(saved.size(), 7u);
  EXPECT_EQ(saved[2].first, "exp_avg.2");
  EXPECT_TRUE(saved[2].second.is_contiguous(at::MemoryFormat::ChannelsLast));
  after.set_state(saved);
  set_gradients(straight, 5);
  set_gradients(second, 5);
  whole.step();
  after.step();
  for (std::size_t i = 0; i < second.size(); ++i) EXPECT_TRUE(at::equal(second[i], straight[i]));
}

TEST(Optimizer, a_parameter_without_a_gradient_stays) {
  auto parameters = make_parameters();
  const auto before = parameters[1].clone();
  set_gradients(parameters, 0);
  parameters[1].mutable_grad() = at::Tensor();
  SGD sgd(parameters, {.lr = 1.0});
  sgd.step();
  EXPECT_TRUE(at::equal(parameters[1], before));
  sgd.zero_grad();
  EXPECT_FALSE(parameters[0].grad().defined());
}

std::size_t resident_state(const Optimizer& optimizer) {
  std::vector<std::span<const std::byte>> ranges;
  for (const StatePart& part : core_of(optimizer).state_parts()) {
    ranges.emplace_back(static_cast<const std::byte*>(part.elements.data_ptr()),
                        part.elements.nbytes());
  }
  return harness::resident_bytes(ranges);
}

// A model that will be divided among ranks must not take memory for its whole state on each rank.
TEST(Optimizer, the_state_takes_no_memory_before_the_first_step) {
  const at::Tensor parameter = torch::ones({1 << 20}, torch::requires_grad());
  const at::Tensor unused = torch::ones({1 << 20}, torch::requires_grad());
  Adam adam({parameter, unused});
  // Huge pages may cover parts of the state together with its neighbours.
  EXPECT_LE(resident_state(adam), 4U << 20);
  EXPECT_EQ(adam.num_state_bytes(), 16U << 20);
  parameter.mutable_grad() = at::ones({1 << 20});
  adam.step();
  EXPECT_GE(resident_state(adam), 8U << 20);
}

// Adds a group after some steps, as LibTorch's optimizer can: the other parameters keep their
// state.
TEST(Optimizer, a_group_may_be_added_at_any_time) {
  for (const bool is_16_bit : {false, true}) {
    auto expected = make_parameters();
    auto own = make_parameters();
    if (is_16_bit) {
      for (auto& parameter : own) parameter = parameter.detach().to(at::kBFloat16).requires_grad_();
    }
    torch::optim::Adam reference({expected[0]}, torch::optim::AdamOptions(1e-2));
    Adam fused({own[0]}, {.lr = 1e-2});
    const auto step = [&](int number) {
      set_gradients(expected, number);
      for (std::size_t i = 0; i < own.size(); ++i)
        own[i].mutable_grad() = expected[i].grad().to(own[i].scalar_type());
      reference.step();
      fused.step();
    };
    for (int number = 0; number < 5; ++number) step(number);
    // Not 1e-3: that is LibTorch's default, which LibTorch 2.15 replaces with the first group's
    // rate.
    reference.add_param_group(torch::optim::OptimizerParamGroup(
        {expected[1], expected[2]},
        std::make_unique<torch::optim::AdamOptions>(torch::optim::AdamOptions(3e-3))));
    const StepLR early(fused, 1);
    fused.add_param_group({{own[1], own[2]}, {.lr = 3e-3}});
    EXPECT_EQ(fused.num_groups(), 2u);
    EXPECT_EQ(fused.group_of(2), 1u);
    fused.verify_state();
    for (int number = 5; number < 10; ++number) step(number);
    const double tolerance = is_16_bit ? 2e-2 : 1e-5;
    for (std::size_t i = 0; i < own.size(); ++i)
      EXPECT_TRUE(at::allclose(own[i].to(at::kFloat), expected[i], tolerance, tolerance)) << i;
    EXPECT_EQ(core_of(fused).num_steps().second[0].item<std::int64_t>(), 10);
    EXPECT_EQ(core_of(fused).num_steps().second[1].item<std::int64_t>(), 5);
    const NamedTensors saved = fused.state();
    fused.set_state(saved);
  }
}

TEST(Optimizer, groups_that_cannot_be_added_change_nothing) {
  auto own = make_parameters();
  SGD sgd({own[0]}, {.lr = 0.1});
  StepLR schedule(sgd, 1);
  EXPECT_THROW(sgd.add_param_group({{own[1], own[0]}, {}}), Error);
  EXPECT_THROW(sgd.add_param_group({{own[1], torch::zeros({2}, at::kDouble)}, {}}), Error);
  EXPECT_THROW(sgd.add_param_group({{own[1]}, {.lr = -1}}), Error);
  EXPECT_THROW(sgd.add_param_group({{own[1]}, {.momentum = 0.9}}), Error);
  EXPECT_EQ(sgd.parameters().size(), 1u);
  EXPECT_EQ(sgd.num_groups(), 1u);
  sgd.add_param_group({{own[1]}, {.lr = 0.2}});
  EXPECT_EQ(sgd.options(1).lr, 0.2);
  EXPECT_THROW(schedule.step(), Error) << "it has no base rate of the new group";
}

TEST(Optimizer, bad_options_are_refused) {
  EXPECT_THROW(Adam(make_parameters(), {.betas = {1.0, 0.999}}), Error);
  EXPECT_THROW(Adam(make_parameters(), {.lr = -1}), Error);
  Adam adam(make_parameters(), {.lr = 0.5});
  for (const double rate : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()})
    EXPECT_THROW(adam.set_learning_rate(rate), Error) << rate;
  EXPECT_EQ(adam.learning_rate(), 0.5);
  EXPECT_THROW(SGD(make_parameters(), {.momentum = 0, .nesterov = true}), Error);
  EXPECT_THROW(SGD({torch::zeros({2}, at::kDouble)}, {}), Error);
}

TEST(Optimizer, groups_have_options_of_their_own_as_torchs) {
  auto expected = make_parameters();
  auto own = make_parameters();
  std::vector<torch::optim::OptimizerParamGroup> torchs;
  torchs.emplace_back(std::vector<at::Tensor>{expected[0], expected[2]},
                      std::make_unique<torch::optim::AdamWOptions>(
                          torch::optim::AdamWOptions(1e-2).weight_decay(0.1)));
  torchs.emplace_back(std::vector<at::Tensor>{expected[1]},
                      std::make_unique<torch::optim::AdamWOptions>(
                          torch::optim::AdamWOptions(1e-3).weight_decay(0).betas({0.8, 0.99})));
  torch::optim::AdamW reference(torchs);
  AdamW fused({{{own[0], own[2]}, {.lr = 1e-2, .weight_decay = 0.1}},
               {{own[1]}, {.lr = 1e-3, .betas = {0.8, 0.99}, .weight_decay = 0}}});
  EXPECT_EQ(fused.group_of(2), 1u);
  for (int step = 0; step < 20; ++step) {
    set_gradients(expected, step);
    set_gradients(own, step);
    reference.step();
    fused.step();
  }
  for (std::size_t i = 0; i < own.size(); ++i)
    EXPECT_TRUE(at::allclose(own[i], expected[i], 1e-5, 2e-6)) << "parameter " << i;
}

TEST(Optimizer, groups_with_and_without_momentum_are_torchs) {
  auto expected = make_parameters();
  auto own = make_parameters();
  torch::optim::SGD plain({expected[0]}, torch::optim::SGDOptions(0.1));
  torch::optim::SGD moving({expected[1], expected[2]},
                           torch::optim::SGDOptions(0.01).momentum(0.9).nesterov(true));
  SGD fused({{{own[0]}, {.lr = 0.1}},
             {{own[1], own[2]}, {.lr = 0.01, .momentum = 0.9, .nesterov = true}}});
  for (int step = 0; step < 20; ++step) {
    set_gradients(expected, step);
    set_gradients(own, step);
    plain.step();
    moving.step();
    fused.step();
  }
  for (std::size_t i = 0; i < own.size(); ++i)
    EXPECT_TRUE(at::allclose(own[i], expected[i], 1e-5, 2e-6)) << "parameter " << i;
}

// Saved and loaded while the momentum is 0, a state continues with the same bits.
TEST(Optimizer, a_momentum_of_0_in_between_keeps_the_velocity_as_torchs) {
  for (const bool nesterov : {false, true}) {
    auto expected = make_parameters(), own = make_parameters(), loaded = make_parameters();
    torch::optim::SGD reference(expected,
                                torch::optim::SGDOptions(0.01).momentum(0.9).nesterov(nesterov));
    LibTorchOptimizer wrapper(reference);
    const SGDOptions options{.lr = 0.01, .momentum = 0.9, .nesterov = nesterov};
    SGD fused(own, options), resumed(loaded, options);
    for (int step = 0; step < 12; ++step) {
      const double momentum = step / 4 == 1 ? 0.0 : 0.9;
      for (Optimizer* optimizer : std::initializer_list<Optimizer*>{&wrapper, &fused, &resumed})
        optimizer->set_momentum(0, momentum);
      if (step == 6) {
        const torch::NoGradGuard no_grad;
        for (std::size_t i = 0; i < own.size(); ++i) loaded[i].copy_(own[i]);
        resumed.set_state(fused.state());
      }
      for (auto* parameters : {&expected, &own, &loaded}) set_gradients(*parameters, step);
      wrapper.step();
      fused.step();
      if (step >= 6) resumed.step();
    }
    for (std::size_t i = 0; i < own.size(); ++i) {
      EXPECT_TRUE(at::allclose(own[i], expected[i], 1e-5, 2e-6)) << "parameter " << i;
      EXPECT_TRUE(at::equal(own[i], loaded[i])) << "parameter " << i;
    }
  }
}

TEST(Optimizer, learning_rates_are_set_for_one_group_or_for_all) {
  auto own = make_parameters();
  SGD sgd({{{own[0]}, {.lr = 0.1}}, {{own[1]}, {.lr = 0.2}}});
  EXPECT_EQ(sgd.learning_rates(), (std::vector<double>{0.1, 0.2}));
  sgd.set_learning_rate(1, 0.3);
  EXPECT_EQ(sgd.learning_rate(), 0.1);
  EXPECT_EQ(sgd.learning_rate(1), 0.3);
  sgd.set_learning_rate(0.4);
  EXPECT_EQ(sgd.learning_rates(), (std::vector<double>{0.4, 0.4}));
  EXPECT_THROW(sgd.set_learning_rates({0.1}), Error);
  EXPECT_THROW(sgd.set_momentum(0, 0.9), Error);
  torch::optim::SGD plain(make_parameters(), torch::optim::SGDOptions(0.1));
  EXPECT_THROW(LibTorchOptimizer(plain).set_momentum(0, 0.9), Error);
}

TEST(Optimizer, a_parameter_in_two_groups_is_refused) {
  auto own = make_parameters();
  EXPECT_THROW(SGD({{{own[0]}, {}}, {{own[1], own[0]}, {}}}), Error);
}

}  // namespace
}  // namespace paceline::optim
