// The rule of the scaler, and that all ranks skip the same steps.

#include "paceline/training/optim/grad_scaler.h"

#include <array>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/engine/core/error.h"
#include "paceline/training/optim/clip_gradients.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/optim/rules/update_rules.h"

#include "tests/harness/says.h"
#include "tests/harness/thread_ranks.h"
#include "tests/training/optim/odd_parameters.h"

namespace paceline::optim {
namespace {

using harness::Says;

constexpr float kInf = std::numeric_limits<float>::infinity();

// A parameter, its optimizer, and a pass that gives it the gradient 1, scaled.
struct ScaledRun {
  std::vector<at::Tensor> parameters = {at::zeros({4}).set_requires_grad(true)};
  SGD sgd{parameters, {.lr = 1}};

  void backward(const GradScaler& scaler) {
    sgd.zero_grad();
    scaler.scale(parameters[0].sum()).backward();
  }
  void overflow(const GradScaler& scaler) {
    backward(scaler);
    parameters[0].grad()[2] = kInf;
  }
};

TEST(GradScaler, a_scaled_loss_gives_the_unscaled_step) {
  ScaledRun run;
  GradScaler scaler;
  run.backward(scaler);
  EXPECT_EQ(run.parameters[0].grad()[0].item<float>(), 65536);
  EXPECT_TRUE(scaler.step(run.sgd));
  scaler.update();
  EXPECT_TRUE(at::equal(run.parameters[0], at::full({4}, -1.0)));
}

TEST(GradScaler, halves_after_an_overflow_and_doubles_after_the_interval) {
  ScaledRun run;
  GradScaler scaler({.growth_interval = 3});
  run.overflow(scaler);
  EXPECT_FALSE(scaler.step(run.sgd));
  scaler.update();
  EXPECT_EQ(scaler.loss_scale(), 32768);
  EXPECT_TRUE(at::equal(run.parameters[0], at::zeros({4})));
  for (int step = 0; step < 3; ++step) {
    EXPECT_EQ(scaler.loss_scale(), 32768);
    EXPECT_EQ(scaler.growth_tracker(), step);
    run.backward(scaler);
    EXPECT_TRUE(scaler.step(run.sgd));
    scaler.update();
  }
  EXPECT_EQ(scaler.loss_scale(), 65536);
  EXPECT_EQ(scaler.growth_tracker(), 0);
}

TEST(GradScaler, never_grows_to_infinity) {
  ScaledRun run;
  GradScaler scaler({.init_scale = 0x1p127, .growth_interval = 1});
  run.parameters[0].mutable_grad() = at::ones({4});
  scaler.step(run.sgd);
  scaler.update();
  EXPECT_EQ(scaler.loss_scale(), 0x1p127);
}

TEST(GradScaler, unscaled_gradients_can_be_clipped) {
  ScaledRun run;
  GradScaler scaler;
  run.backward(scaler);
  scaler.unscale(run.sgd);
  EXPECT_EQ(clip_grad_norm(run.parameters, 1.0), 2.0);
  scaler.step(run.sgd);
  EXPECT_TRUE(at::allclose(run.parameters[0], at::full({4}, -0.5)));
}

TEST(GradScaler, small_float16_gradients_are_not_lost) {
  std::vector<at::Tensor> parameters = {at::zeros({4}, at::kHalf).set_requires_grad(true)};
  SGD sgd(parameters, {.lr = 1});
  GradScaler scaler;
  parameters[0].mutable_grad() = at::full({4}, 0x1p-14, at::kHalf);
  scaler.step(sgd);
  EXPECT_TRUE(at::equal(sgd.state()[0].second, at::full({4}, -0x1p-30)));
}

TEST(GradScaler, one_optimizers_overflow_skips_only_its_step_but_lowers_the_scale) {
  ScaledRun good, bad;
  GradScaler scaler;
  good.backward(scaler);
  bad.overflow(scaler);
  EXPECT_TRUE(scaler.step(good.sgd));
  EXPECT_FALSE(scaler.step(bad.sgd));
  scaler.update();
  EXPECT_EQ(scaler.loss_scale(), 32768);
}

TEST(GradScaler, calls_in_the_wrong_order_are_refused) {
  ScaledRun run;
  GradScaler scaler;
  EXPECT_THROW(scaler.update(), Error);
  run.backward(scaler);
  scaler.unscale(run.sgd);
  EXPECT_THROW(scaler.unscale(run.sgd), Error);
  scaler.step(run.sgd);
  EXPECT_THROW(scaler.step(run.sgd), Error);
  EXPECT_THROW(GradScaler({.init_scale = 0}), Error);
  EXPECT_THROW(GradScaler({.growth_factor = 1}), Error);
  EXPECT_THROW(GradScaler({.backoff_factor = 1}), Error);
  EXPECT_THROW(GradScaler({.growth_interval = 0}), Error);
}

TEST(GradScaler, resumed_it_continues_and_other_options_are_listed) {
  ScaledRun run;
  GradScaler scaler({.growth_interval = 5});
  run.overflow(scaler);
  scaler.step(run.sgd);
  scaler.update();
  run.backward(scaler);
  scaler.step(run.sgd);
  scaler.update();
  GradScaler resumed({.init_scale = 2, .growth_interval = 5});
  resumed.set_state(scaler.state());
  EXPECT_EQ(resumed.loss_scale(), 32768);
  EXPECT_EQ(resumed.growth_tracker(), 1);
  GradScaler other({.growth_factor = 4, .growth_interval = 5});
  try {
    other.set_state(scaler.state());
    FAIL() << "another growth factor was accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), Says("saved_state.differs", "growth_factor", 4, 2));
  }
}

// The ranks do not average their gradients, and only rank 1's gradient is not finite.
TEST(GradScaler, an_overflow_on_one_rank_skips_the_step_of_all) {
  for (const int world : {2, 3, 4}) {
    harness::run_ranks_ok(world, [](ProcessGroup& group) {
      ScaledRun run;
      GradScaler scaler({}, borrowed(group));
      for (int step = 0; step < 4; ++step) {
        const bool overflows = step == 2 && group.rank() == 1;
        overflows ? run.overflow(scaler) : run.backward(scaler);
        EXPECT_EQ(scaler.step(run.sgd), step != 2) << "rank " << group.rank();
        scaler.update();
      }
      EXPECT_EQ(scaler.loss_scale(), 32768);
      EXPECT_TRUE(at::equal(run.parameters[0], at::full({4}, -3.0)));
    });
  }
}

// A sharded step that only one rank skipped would hang. In a training averaging gives NaN to every
// rank.
TEST(GradScaler, a_sharded_step_is_skipped_by_all_ranks) {
  harness::run_ranks_ok(3, [](ProcessGroup& group) {
    SGD sgd(make_odd_parameters(), {.lr = 0.1, .momentum = 0.9});
    core_of(sgd).shard(borrowed(group));
    GradScaler scaler({}, borrowed(group));
    const auto before = copies(sgd.parameters());
    set_gradients(sgd.parameters(), 0);
    if (group.rank() == 2) sgd.parameters()[1].grad()[0] = std::nanf("");
    EXPECT_FALSE(scaler.step(sgd));
    scaler.update();
    expect_same_bits(sgd.parameters(), before);
    set_gradients(sgd.parameters(), 1);
    EXPECT_TRUE(scaler.step(sgd));
  });
}

}  // namespace
}  // namespace paceline::optim
