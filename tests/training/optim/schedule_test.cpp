// Schedules: rates at a few steps, computed by hand (tests/parity compares with Python's), groups,
// resuming, and refused options.

#include <functional>
#include <memory>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/engine/core/error.h"
#include "paceline/training/optim/lr_scheduler.h"
#include "paceline/training/optim/rules/update_rules.h"

#include "tests/harness/says.h"

namespace paceline::optim {
namespace {

using harness::Says;

SGD two_groups() {
  return SGD({{{at::zeros({2})}, {.lr = 0.5, .momentum = 0.9}},
              {{at::zeros({3})}, {.lr = 0.1, .momentum = 0.9}}});
}

using MakeSchedule = std::function<std::unique_ptr<StepCountScheduler>(Optimizer&)>;

std::vector<std::pair<std::string, MakeSchedule>> all_schedules() {
  return {
      {"step", [](Optimizer& o) { return std::make_unique<StepLR>(o, 3, 0.3); }},
      {"multi_step",
       [](Optimizer& o) {
         return std::make_unique<MultiStepLR>(o, std::vector<std::int64_t>{7, 2, 7, 11});
       }},
      {"cosine_annealing",
       [](Optimizer& o) {
         return std::make_unique<CosineAnnealingLR>(
             o, CosineAnnealingLROptions{.T_max = 12, .eta_min = 1e-3, .warmup_steps = 4});
       }},
      {"one_cycle",
       [](Optimizer& o) {
         return std::make_unique<OneCycleLR>(
             o, OneCycleLROptions{.max_lr = {1.0, 0.3}, .total_steps = 20});
       }},
  };
}

TEST(LRScheduler, sets_every_groups_rate_from_its_own_base) {
  auto optimizer = two_groups();
  StepLR schedule(optimizer, 2);
  EXPECT_EQ(optimizer.learning_rates(), (std::vector<double>{0.5, 0.1}));
  schedule.step();
  EXPECT_EQ(optimizer.learning_rates(), (std::vector<double>{0.5, 0.1}));
  schedule.step();
  EXPECT_EQ(optimizer.learning_rates(), (std::vector<double>{0.5 * 0.1, 0.1 * 0.1}));
}

TEST(LRScheduler, a_milestone_given_twice_counts_twice) {
  auto optimizer = two_groups();
  MultiStepLR schedule(optimizer, {2, 1, 2}, 0.5);
  schedule.step();
  EXPECT_EQ(optimizer.learning_rate(), 0.25);
  schedule.step();
  EXPECT_EQ(optimizer.learning_rate(), 0.0625);
}

TEST(LRScheduler, a_warm_up_ends_at_the_base_rate_and_the_cosine_at_eta_min) {
  auto optimizer = two_groups();
  CosineAnnealingLR schedule(
      optimizer, {.T_max = 10, .eta_min = 0.02, .warmup_steps = 5, .warmup_start_factor = 0.2});
  EXPECT_DOUBLE_EQ(optimizer.learning_rate(0), 0.1);
  for (int i = 0; i < 5; ++i) schedule.step();
  EXPECT_DOUBLE_EQ(optimizer.learning_rate(0), 0.5);
  EXPECT_DOUBLE_EQ(optimizer.learning_rate(1), 0.1);
  for (int i = 0; i < 10; ++i) schedule.step();
  EXPECT_DOUBLE_EQ(optimizer.learning_rate(0), 0.02);
  EXPECT_DOUBLE_EQ(optimizer.learning_rate(1), 0.02);
}

TEST(LRScheduler, one_cycle_moves_the_momentum_against_the_rate) {
  auto optimizer = two_groups();
  OneCycleLR schedule(optimizer, {.max_lr = {1.0}, .total_steps = 10, .pct_start = 0.5});
  EXPECT_NEAR(optimizer.learning_rate(1), 0.04, 1e-15);
  EXPECT_DOUBLE_EQ(optimizer.momentum(1), 0.95);
  for (int i = 0; i < 4; ++i) schedule.step();
  EXPECT_DOUBLE_EQ(optimizer.learning_rate(1), 1.0);
  EXPECT_DOUBLE_EQ(optimizer.momentum(1), 0.85);
  for (int i = 0; i < 5; ++i) schedule.step();
  EXPECT_NEAR(optimizer.learning_rate(1), 4e-6, 1e-15);
  schedule.step();
  EXPECT_THROW(schedule.step(), Error);
}

TEST(LRScheduler, the_momentum_of_one_cycle_may_be_0_at_the_peak) {
  auto optimizer = two_groups();
  OneCycleLR schedule(optimizer,
                      {.max_lr = {1.0}, .total_steps = 10, .pct_start = 0.5, .base_momentum = 0});
  for (int i = 0; i < 4; ++i) schedule.step();
  EXPECT_EQ(optimizer.momentum(0), 0);
  for (int i = 4; i < 10; ++i) schedule.step();
  EXPECT_DOUBLE_EQ(optimizer.momentum(0), 0.95);
  for (const double momentum : {-0.1, 1.0}) {
    EXPECT_THROW(
        OneCycleLR(optimizer, {.max_lr = {1.0}, .total_steps = 10, .base_momentum = momentum}),
        Error);
  }
}

TEST(LRScheduler, after_the_last_step_of_one_cycle_the_rate_stays) {
  auto optimizer = two_groups();
  OneCycleLR schedule(optimizer, {.max_lr = {1.0},
                                  .total_steps = 10,
                                  .anneal_strategy = OneCycleLROptions::AnnealStrategy::kLinear});
  for (int i = 0; i < 9; ++i) schedule.step();
  const double last = optimizer.learning_rate();
  schedule.step();
  EXPECT_EQ(optimizer.learning_rate(), last);
}

TEST(LRScheduler, one_cycle_may_rise_in_no_steps) {
  for (const bool three_phase : {false, true}) {
    auto optimizer = two_groups();
    OneCycleLR schedule(
        optimizer,
        {.max_lr = {1.0}, .total_steps = 10, .pct_start = 0.1, .three_phase = three_phase});
    EXPECT_DOUBLE_EQ(optimizer.learning_rate(), 1);
    for (int i = 0; i < 10; ++i) {
      EXPECT_GT(optimizer.learning_rate(), 0);
      EXPECT_LE(optimizer.learning_rate(), 1);
      schedule.step();
    }
  }
}

TEST(LRScheduler, one_cycle_needs_a_momentum_to_move) {
  SGD plain({at::zeros({2})});
  EXPECT_THROW(OneCycleLR(plain, {.max_lr = {1.0}, .total_steps = 10}), Error);
  OneCycleLR without(plain, {.max_lr = {1.0}, .total_steps = 10, .cycle_momentum = false});
  Adam adam({at::zeros({2})});
  OneCycleLR with_beta1(adam, {.max_lr = {1.0}, .total_steps = 10});
  EXPECT_DOUBLE_EQ(std::get<0>(adam.options().betas), 0.95);
}

TEST(LRScheduler, resumed_in_the_middle_it_gives_the_same_bits) {
  for (const auto& [name, make] : all_schedules()) {
    for (const int middle : {0, 1, 5, 13}) {
      auto straight = two_groups();
      const auto whole = make(straight);
      EXPECT_EQ(whole->name(), name);
      for (int i = 0; i < middle; ++i) whole->step();
      const Metadata saved = whole->state();
      auto other = two_groups();
      const auto resumed = make(other);
      resumed->set_state(saved);
      for (int i = middle; i < 18; ++i) {
        EXPECT_EQ(other.learning_rates(), straight.learning_rates()) << name << ", step " << i;
        EXPECT_EQ(other.momentum(1), straight.momentum(1)) << name << ", step " << i;
        whole->step();
        resumed->step();
      }
    }
  }
}

TEST(LRScheduler, on_a_plateau_the_rates_fall_after_the_patience) {
  auto optimizer = two_groups();
  ReduceLROnPlateau schedule(optimizer, {.factor = 0.5, .patience = 2, .min_lr = 0.07});
  schedule.step(1.0);
  for (int i = 0; i < 2; ++i) schedule.step(1.0);
  EXPECT_EQ(optimizer.learning_rate(0), 0.5);
  schedule.step(0.99999);  // improves by less than the threshold
  EXPECT_EQ(optimizer.learning_rate(0), 0.25);
  EXPECT_EQ(optimizer.learning_rate(1), 0.07);
}

TEST(LRScheduler, a_plateau_resumed_in_the_middle_gives_the_same_bits) {
  const ReduceLROnPlateauOptions options{
      .mode = ReduceLROnPlateauOptions::Mode::kMax, .patience = 1, .cooldown = 2};
  const std::vector<double> metrics = {0.3, 0.3, 0.3, 0.2, 0.1, 0.5, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4};
  for (std::size_t middle = 0; middle < metrics.size(); ++middle) {
    auto straight = two_groups();
    ReduceLROnPlateau whole(straight, options);
    for (std::size_t i = 0; i < middle; ++i) whole.step(metrics[i]);
    auto other = two_groups();
    ReduceLROnPlateau resumed(other, options);
    resumed.set_state(whole.state());
    for (std::size_t i = middle; i < metrics.size(); ++i) {
      whole.step(metrics[i]);
      resumed.step(metrics[i]);
      EXPECT_EQ(other.learning_rates(), straight.learning_rates());
    }
    EXPECT_LT(straight.learning_rate(), 0.5);
  }
}

std::string refusal(LRScheduler& schedule, const Metadata& state) {
  try {
    schedule.set_state(state);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalid);
    return error.what();
  }
  return "";
}

TEST(LRScheduler, resumed_with_other_parameters_it_lists_all_differences) {
  auto optimizer = two_groups();
  StepLR schedule(optimizer, 3, 0.3);
  schedule.step();
  auto other = two_groups();
  other.set_learning_rate(1, 0.2);
  StepLR changed(other, 4, 0.3);
  const std::string text = refusal(changed, schedule.state());
  EXPECT_THAT(text, Says("saved_state.differs", "step_size", 4, 3));
  EXPECT_THAT(text, Says("saved_state.differs", "base_lr", "0.5 0.2", "0.5 0.1"));
  EXPECT_EQ(text.find("gamma"), std::string::npos) << text;
  EXPECT_EQ(changed.num_steps(), 0);
}

TEST(LRScheduler, the_state_of_another_kind_or_a_damaged_one_is_refused) {
  auto optimizer = two_groups();
  StepLR step(optimizer, 3);
  auto other = two_groups();
  MultiStepLR multi(other, {3});
  const std::string text = refusal(multi, step.state());
  EXPECT_THAT(text, Says("saved_state.differs", "schedule", "multi_step", "step"));
  Metadata damaged = step.state();
  damaged["num_steps"] = "12x";
  EXPECT_THAT(refusal(step, damaged), Says("saved_state.not_a_number", "num_steps"));
  damaged.erase("num_steps");
  EXPECT_THAT(refusal(step, damaged),
              testing::AllOf(Says("saved_state.lacks"), testing::HasSubstr("num_steps")));
}

TEST(LRScheduler, bad_options_are_refused) {
  auto o = two_groups();
  EXPECT_THROW(StepLR(o, 0), Error);
  EXPECT_THROW(MultiStepLR(o, {1}, -1), Error);
  EXPECT_THROW(CosineAnnealingLR(o, {.T_max = 0}), Error);
  EXPECT_THROW(CosineAnnealingLR(o, {.T_max = 3, .warmup_steps = 2, .warmup_start_factor = 0}),
               Error);
  EXPECT_THROW(OneCycleLR(o, {.max_lr = {1, 2, 3}, .total_steps = 10}), Error);
  EXPECT_THROW(OneCycleLR(o, {.max_lr = {1}, .total_steps = 0}), Error);
  EXPECT_THROW(ReduceLROnPlateau(o, {.factor = 1}), Error);
  EXPECT_THROW(ReduceLROnPlateau(o, {.patience = -1}), Error);
}

}  // namespace
}  // namespace paceline::optim
