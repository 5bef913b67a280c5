// Compares everything around the optimizers with Python's PyTorch: groups, schedules, clipping,
// 16-bit parameters, average, autocast, loss scaling; and LAMB and LARS with their formulas in
// float64. optim_reference.py describes the files that it writes.

#include <functional>
#include <limits>
#include <memory>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/training/optim/clip_gradients.h"
#include "paceline/training/optim/exponential_moving_average.h"
#include "paceline/training/optim/grad_scaler.h"
#include "paceline/training/optim/lr_scheduler.h"
#include "paceline/training/optim/metadata_words.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/tensor/compute_settings.h"

#include "tests/parity/reference.h"

namespace paceline::optim {
namespace {

constexpr int kOptimSteps = 20;
// The tolerance for parameters after 20 float32 steps, whose operations have another order in
// Python.
constexpr double kOfParameters = 1e-5;
// The tolerance for rates in float64, which Python computes as a chain of products.
constexpr double kOfRates = 1e-12;

class OptimParity : public testing::Test {
 protected:
  // Runs the reference once for all tests of this program.
  static void SetUpTestSuite() {
    reference_ = std::make_unique<parity::Reference>("optim_reference.py");
    ASSERT_EQ(reference_->failure(), "");
  }
  static void TearDownTestSuite() { reference_.reset(); }

  static at::Tensor read(const std::string& name) { return reference_->row(name); }
  static std::vector<double> numbers(const std::string& name) {
    const at::Tensor row = read(name);
    return {row.data_ptr<double>(), row.data_ptr<double>() + row.numel()};
  }

  // The three tensors of a row, as in the reference.
  static std::vector<at::Tensor> cut(const at::Tensor& row, at::ScalarType type = at::kFloat) {
    return {row.narrow(0, 0, 185).view({37, 5}).to(type), row.narrow(0, 185, 3).to(type),
            row.narrow(0, 188, 108).view({4, 3, 3, 3}).to(type)};
  }
  static std::vector<at::Tensor> start(at::ScalarType type = at::kFloat) {
    auto all = cut(read("start"), type);
    for (auto& tensor : all) tensor = tensor.clone().set_requires_grad(true);
    return all;
  }
  static void set_gradients(const std::vector<at::Tensor>& parameters, int step) {
    const auto gradients =
        cut(read("gradients").view({kOptimSteps, -1})[step], parameters[0].scalar_type());
    for (std::size_t i = 0; i < parameters.size(); ++i)
      parameters[i].mutable_grad() = gradients[i].clone();
  }
  static at::Tensor flat(const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> wide;
    for (const auto& tensor : tensors) wide.push_back(tensor.detach().to(at::kDouble));
    return parity::flat(wide);
  }
  static std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
    std::vector<at::Tensor> all;
    for (const auto& parameter : parameters) all.push_back(parameter.grad());
    return all;
  }

  // Takes the reference's steps and compares `value()` with its rows. `tolerance` is relative or
  // absolute, whichever is larger.
  static void expect_rows(const std::string& name, Optimizer& optimizer,
                          const std::vector<at::Tensor>& parameters, double tolerance,
                          const std::function<at::Tensor()>& value) {
    const at::Tensor expected = read(name).view({kOptimSteps, -1});
    double largest = 0;
    for (int step = 0; step < kOptimSteps; ++step) {
      set_gradients(parameters, step);
      optimizer.step();
      const at::Tensor difference = (value() - expected[step]).abs();
      largest =
          std::max(largest, (difference / expected[step].abs().clamp_min(1)).max().item<double>());
      ASSERT_LE(largest, tolerance) << name << ", step " << step;
    }
    std::printf("%s: largest difference %.1e\n", name.c_str(), largest);
  }
  static void expect_steps(const std::string& name, Optimizer& optimizer,
                           const std::vector<at::Tensor>& parameters, double tolerance) {
    expect_rows(name, optimizer, parameters, tolerance, [&] { return flat(parameters); });
  }

  inline static std::unique_ptr<parity::Reference> reference_;
};

TEST_F(OptimParity, steps_of_groups_are_pythons) {
  auto p = start();
  Adam adam({{{p[0], p[2]}, {.lr = 1e-2, .weight_decay = 0.1}},
             {{p[1]}, {.lr = 1e-3, .betas = {0.8, 0.99}}}});
  expect_steps("adam", adam, p, kOfParameters);
  p = start();
  AdamW adamw(
      {{{p[0], p[2]}, {.lr = 1e-2}}, {{p[1]}, {.lr = 1e-3, .eps = 1e-6, .weight_decay = 0.3}}});
  expect_steps("adamw", adamw, p, kOfParameters);
  p = start();
  SGD sgd({{{p[0], p[2]}, {.lr = 0.05, .momentum = 0.9, .dampening = 0.2}},
           {{p[1]}, {.lr = 0.1, .weight_decay = 0.01}}});
  expect_steps("sgd", sgd, p, kOfParameters);
}

TEST_F(OptimParity, steps_of_lamb_and_lars_are_their_formulas) {
  auto p = start();
  LAMB lamb(p, {.lr = 1e-2, .weight_decay = 0.1});
  expect_steps("lamb", lamb, p, kOfParameters);
  p = start();
  LARS lars(p, {.lr = 20, .weight_decay = 0.01});
  expect_steps("lars", lars, p, kOfParameters);
}

// A master that differs in its last bit may be rounded to the next 16-bit number: one unit in the
// last place, 2^-8 of bfloat16 and 2^-11 of float16.
TEST_F(OptimParity, steps_of_16_bit_parameters_are_the_rounded_float32_ones) {
  for (const auto& [name, type, unit] :
       {std::tuple{"bf16", at::kBFloat16, 0x1p-7}, {"fp16", at::kHalf, 0x1p-10}}) {
    const auto p = start(type);
    AdamW adamw(p);
    expect_steps(name, adamw, p, unit);
  }
}

using MakeOfOptimizer = std::function<std::function<void(int step)>(Optimizer&)>;

// `make` makes a schedule and returns a function that advances it.
template <class Kind, class... Options>
MakeOfOptimizer timed(const Options&... options) {
  return [=](Optimizer& optimizer) {
    const auto schedule = std::make_shared<Kind>(optimizer, options...);
    return [schedule](int) { schedule->step(); };
  };
}

TEST_F(OptimParity, rates_of_schedules_are_pythons) {
  const auto metrics = numbers("metrics");
  const auto plateau = [&](const ReduceLROnPlateauOptions& options) -> MakeOfOptimizer {
    return [options, &metrics](Optimizer& optimizer) {
      const auto schedule = std::make_shared<ReduceLROnPlateau>(optimizer, options);
      return [schedule, &metrics](int step) {
        schedule->step(metrics[static_cast<std::size_t>(step)]);
      };
    };
  };
  const std::vector<std::pair<std::string, MakeOfOptimizer>> all = {
      {"step", timed<StepLR>(7)},
      {"multi_step", timed<MultiStepLR>(std::vector<std::int64_t>{5, 20, 12, 20}, 0.3)},
      {"cosine", timed<CosineAnnealingLR>(CosineAnnealingLROptions{.T_max = 15, .eta_min = 0.01})},
      {"warm_up",
       timed<CosineAnnealingLR>(CosineAnnealingLROptions{.T_max = 30, .warmup_steps = 6})},
      {"one_cycle", timed<OneCycleLR>(OneCycleLROptions{.max_lr = {1.0, 0.3}, .total_steps = 40})},
      {"three_phase", timed<OneCycleLR>(OneCycleLROptions{
                          .max_lr = {2.0},
                          .total_steps = 40,
                          .pct_start = 0.25,
                          .anneal_strategy = OneCycleLROptions::AnnealStrategy::kLinear,
                          .base_momentum = 0.8,
                          .max_momentum = 0.9,
                          .three_phase = true})},
      {"plateau", plateau({.patience = 3})},
      {"plateau_max", plateau({.mode = ReduceLROnPlateauOptions::Mode::kMax,
                               .factor = 0.5,
                               .patience = 1,
                               .threshold = 0.01,
                               .threshold_mode = ReduceLROnPlateauOptions::ThresholdMode::kAbsolute,
                               .cooldown = 2,
                               .min_lr = 0.04})},
  };
  for (const auto& [name, make] : all) {
    SGD sgd({{{at::zeros({2})}, {.lr = 0.5, .momentum = 0.9}},
             {{at::zeros({3})}, {.lr = 0.1, .momentum = 0.9}}});
    const auto advance = make(sgd);
    const at::Tensor expected = read("schedule." + name).view({41, 3});
    // A cycle of 40 steps has no use for the values after its last step, and PyTorch's may be
    // negative.
    const int last = name == "one_cycle" || name == "three_phase" ? 39 : 40;
    for (int step = 0; step <= last; ++step) {
      const at::Tensor own =
          at::tensor({sgd.learning_rate(0), sgd.learning_rate(1), sgd.momentum(1)}, at::kDouble);
      ASSERT_TRUE(at::allclose(own, expected[step], kOfRates, 1e-15))
          << name << ", step " << step << ": " << own << " is not " << expected[step];
      if (step < 40) advance(step);  // also after the last step
    }
  }
}

// To 1e-6, because Python's norms are float32.
TEST_F(OptimParity, clipped_gradients_are_pythons) {
  for (const auto& [power, name] : {std::pair{0.5, "0.5"},
                                    {1.0, "1.0"},
                                    {2.0, "2.0"},
                                    {3.0, "3.0"},
                                    {std::numeric_limits<double>::infinity(), "inf"}}) {
    const auto p = start();
    set_gradients(p, 0);
    const at::Tensor expected = read(std::string("clip_norm.") + name);
    const double norm = power == 2 ? clip_grad_norm(p, 1.5) : clip_grad_norm(p, 1.5, power);
    EXPECT_NEAR(norm, expected[0].item<double>(), 1e-6 * norm) << name;
    EXPECT_TRUE(at::allclose(flat(gradients_of(p)), expected.slice(0, 1), 1e-6, 1e-9)) << name;
  }
  const auto p = start();
  set_gradients(p, 0);
  clip_grad_value(p, 0.7);
  EXPECT_TRUE(at::equal(flat(gradients_of(p)), read("clip_value")));
}

TEST_F(OptimParity, an_average_of_weights_is_pythons) {
  const auto p = start();
  SGD sgd(p, {.lr = 0.1});
  ExponentialMovingAverage average(p, 0.9);
  expect_rows("average", sgd, p, 1e-6, [&] {
    average.update();
    std::vector<at::Tensor> weights;
    const auto state = average.state();
    for (std::size_t i = 0; i < p.size(); ++i) weights.push_back(state[i].second);
    return flat(weights);
  });
}

// To 1%, because bfloat16 has 8 bits and another version of LibTorch may add in another order.
TEST_F(OptimParity, a_pass_under_autocast_is_pythons) {
  const at::Tensor inputs = read("autocast.inputs").to(at::kFloat);
  const at::Tensor first = inputs.narrow(0, 0, 128).view({16, 8}).clone().set_requires_grad(true);
  const at::Tensor second = inputs.narrow(0, 128, 64).view({4, 16});
  const at::Tensor x = inputs.narrow(0, 192, 40).view({5, 8});
  at::Tensor loss;
  {
    const Autocast autocast(at::kBFloat16);
    const at::Tensor hidden = at::linear(x, first).relu();
    loss = at::linear(hidden, second).to(at::kFloat).square().mean();
  }
  loss.backward();
  const at::Tensor expected = read("autocast").to(at::kFloat);
  EXPECT_NEAR(loss.item<float>(), expected[0].item<float>(), 1e-2 * expected[0].item<float>());
  const at::Tensor gradient = expected.slice(0, 1).view({16, 8});
  EXPECT_LE((first.grad() - gradient).norm().item<float>(), 1e-2 * gradient.norm().item<float>());
}

TEST_F(OptimParity, loss_scaling_is_pythons) {
  const GradScalerOptions options;
  EXPECT_EQ(numbers("scaler.defaults"),
            (std::vector<double>{options.init_scale, options.growth_factor, options.backoff_factor,
                                 static_cast<double>(options.growth_interval)}));
  // Compares with the documented rule; PyTorch before 2.3 scales only on GPUs and writes no scales.
  const auto expected = numbers("scaler.scales");
  std::vector<double> scales, by_rule;
  GradScaler scaler({.growth_interval = 3});
  const at::Tensor weight = at::zeros({1}).set_requires_grad(true);
  SGD sgd({weight}, {.lr = 0.1});
  double scale = options.init_scale;
  int good = 0;
  for (const double overflow : numbers("scaler.overflows")) {
    const bool overflows = overflow != 0;
    weight.mutable_grad() = at::full({1}, overflows ? INFINITY : 1.0f);
    EXPECT_EQ(scaler.step(sgd), !overflows);
    scaler.update();
    scales.push_back(scaler.loss_scale());
    good = overflows ? 0 : good + 1;
    if (overflows) scale *= options.backoff_factor;
    if (good == 3) scale *= options.growth_factor;
    good %= 3;
    by_rule.push_back(scale);
  }
  EXPECT_EQ(scales, by_rule);
  if (!expected.empty()) {
    EXPECT_EQ(scales, expected);
  }
}

TEST_F(OptimParity, defaults_are_pythons) {
  const auto values = [](const auto& options) {
    const auto [beta1, beta2] = options.betas;
    return std::vector<double>{options.lr, beta1, beta2, options.eps, options.weight_decay};
  };
  EXPECT_EQ(numbers("defaults.adam"), values(AdamOptions()));
  EXPECT_EQ(numbers("defaults.adamw"), values(AdamWOptions()));
  const SGDOptions sgd;
  EXPECT_EQ(numbers("defaults.sgd"),
            (std::vector<double>{sgd.momentum, sgd.dampening, sgd.weight_decay,
                                 sgd.nesterov ? 1.0 : 0.0}));
  // The options for which Python's version has no default are omitted here.
  const auto rate = numbers("defaults.sgd_rate");
  EXPECT_TRUE(rate.empty() || rate == std::vector<double>{sgd.lr});
  const auto decay = numbers("defaults.ema");
  EXPECT_TRUE(decay.empty() ||
              decay ==
                  numbers_in(ExponentialMovingAverage({at::zeros({1})}).options(), "decay", ""));
  SGD any({at::zeros({1})}, {.lr = 0.1});
  const auto gamma_of = [](const LRScheduler& schedule) {
    return numbers_in(schedule.state(), "gamma", schedule.name())[0];
  };
  EXPECT_EQ(numbers("defaults.step"),
            (std::vector<double>{gamma_of(StepLR(any, 1)), gamma_of(MultiStepLR(any, {1}))}));
  const CosineAnnealingLROptions cosine;
  EXPECT_EQ(numbers("defaults.cosine"),
            (std::vector<double>{cosine.eta_min, cosine.warmup_start_factor}));
  const OneCycleLROptions cycle;
  EXPECT_EQ(numbers("defaults.one_cycle"),
            (std::vector<double>{cycle.pct_start, cycle.cycle_momentum ? 1.0 : 0.0,
                                 cycle.base_momentum, cycle.max_momentum, cycle.div_factor,
                                 cycle.final_div_factor, cycle.three_phase ? 1.0 : 0.0}));
  const ReduceLROnPlateauOptions plateau;
  EXPECT_EQ(
      numbers("defaults.plateau"),
      (std::vector<double>{plateau.factor, static_cast<double>(plateau.patience), plateau.threshold,
                           static_cast<double>(plateau.cooldown), plateau.min_lr, plateau.eps}));
}

}  // namespace
}  // namespace paceline::optim
