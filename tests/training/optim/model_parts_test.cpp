// An optimizer whose model is divided among four ranks, two stages with two parts of the layers
// each, compared with the optimizer of the whole model.

#include <limits>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/engine/collectives/group/device_mesh.h"
#include "paceline/training/optim/clip_gradients.h"
#include "paceline/training/optim/grad_scaler.h"
#include "paceline/training/optim/optimizer.h"
#include "paceline/training/optim/rules/update_rules.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/thread_ranks.h"

namespace paceline::optim {
namespace {

using harness::run_ranks_ok;
using Tensors = std::vector<at::Tensor>;

at::Tensor made_up(at::IntArrayRef sizes, double seed) {
  std::int64_t count = 1;
  for (const auto size : sizes) count *= size;
  return (at::arange(count, at::kDouble) * 1.37 + seed).sin().reshape(sizes).to(at::kFloat);
}

at::Tensor trainable(const at::Tensor& values) { return values.clone().requires_grad_(); }

// The whole model: a weight and a bias in each stage, and a weight that both stages use.
struct Whole {
  Tensors parameters;
  Tensors gradients(int step) const {
    Tensors all;
    for (std::size_t i = 0; i < parameters.size(); ++i)
      all.push_back(made_up(parameters[i].sizes(), 3.0 * step + static_cast<double>(i)));
    return all;
  }
};

Whole make_whole() {
  Whole whole;
  double seed = 0;
  for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{6, 5}, {7}, {4, 700}, {3}, {9}})
    whole.parameters.push_back(trainable(made_up(sizes, seed += 0.4)));
  return whole;
}

// One rank's part of the model: half of the rows of each matrix, and all of each vector.
struct Part {
  explicit Part(ProcessGroup& world)
      : mesh({&world, [](auto*) {}}, {{"pp", 2}, {"tp", 2}}),
        numbers(mesh.rank("pp") == 0 ? std::vector<std::size_t>{0, 1, 4}
                                     : std::vector<std::size_t>{2, 3, 4}) {
    const Tensors whole = make_whole().parameters;
    for (const std::size_t i : numbers) parameters.push_back(trainable(part_of(whole[i].detach())));
  }

  at::Tensor part_of(const at::Tensor& whole) const {
    if (whole.dim() == 1) return whole;
    const std::int64_t half = whole.size(0) / 2;
    return whole.narrow(0, half * mesh.rank("tp"), half).contiguous();
  }
  void set_gradients(const Tensors& whole) const {
    for (std::size_t i = 0; i < numbers.size(); ++i)
      parameters[i].mutable_grad() = part_of(whole[numbers[i]]).clone();
  }
  ModelParts parts() const {
    ModelParts parts{.model = mesh.world(), .layers = mesh.group("tp"), .divided = {parameters[0]}};
    if (mesh.rank("tp") > 0) parts.copies.push_back(parameters[1]);
    if (mesh.rank("tp") > 0 || mesh.rank("pp") > 0) parts.copies.push_back(parameters[2]);
    return parts;
  }

  DeviceMesh mesh;
  std::vector<std::size_t> numbers;  // the numbers of its parameters in the whole model
  Tensors parameters;
};

TEST(ModelParts, norms_are_those_of_the_whole_model) {
  const Whole whole = make_whole();
  const Tensors gradients = whole.gradients(0);
  for (std::size_t i = 0; i < gradients.size(); ++i)
    whole.parameters[i].mutable_grad() = gradients[i].clone();
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  std::map<double, double> wanted;
  for (const double power : {1.0, 2.0, kInfinite})
    wanted[power] = grad_norm(whole.parameters, power);
  clip_grad_norm(whole.parameters, 0.25 * wanted[2]);
  run_ranks_ok(4, [&](ProcessGroup& world) {
    const Part part(world);
    part.set_gradients(gradients);
    Adam optimizer(part.parameters);
    optimizer.set_model_parts(part.parts());
    for (const auto& [power, norm] : wanted)
      EXPECT_NEAR(grad_norm(optimizer, power), norm, 1e-12 * norm) << power;
    EXPECT_NEAR(clip_grad_norm(optimizer, 0.25 * wanted.at(2)), wanted.at(2), 1e-12 * wanted.at(2));
    for (std::size_t i = 0; i < part.numbers.size(); ++i) {
      EXPECT_TRUE(torch::allclose(part.parameters[i].grad(),
                                  part.part_of(whole.parameters[part.numbers[i]].grad())));
    }
  });
}

template <class MakeOptimizer>
void expect_steps_of_the_whole(const MakeOptimizer& make) {
  const Whole whole = make_whole();
  const auto optimizer = make(whole.parameters);
  for (int step = 0; step < 3; ++step) {
    const Tensors gradients = whole.gradients(step);
    for (std::size_t i = 0; i < gradients.size(); ++i)
      whole.parameters[i].mutable_grad() = gradients[i].clone();
    optimizer->step();
  }
  run_ranks_ok(4, [&](ProcessGroup& world) {
    const Part part(world);
    const auto own = make(part.parameters);
    own->set_model_parts(part.parts());
    for (int step = 0; step < 3; ++step) {
      part.set_gradients(whole.gradients(step));
      own->step();
    }
    for (std::size_t i = 0; i < part.numbers.size(); ++i) {
      const at::Tensor wanted = part.part_of(whole.parameters[part.numbers[i]].detach());
      EXPECT_TRUE(torch::allclose(part.parameters[i].detach(), wanted, 1e-6, 1e-7)) << i;
    }
  });
}

TEST(ModelParts, lamb_and_lars_take_the_steps_of_the_whole_model) {
  expect_steps_of_the_whole([](const Tensors& parameters) {
    return std::make_unique<LAMB>(parameters, LAMBOptions{.lr = 0.1, .weight_decay = 0.01});
  });
  expect_steps_of_the_whole([](const Tensors& parameters) {
    return std::make_unique<LARS>(parameters, LARSOptions{.lr = 0.1, .weight_decay = 0.01});
  });
}

TEST(ModelParts, an_overflow_in_one_part_skips_the_step_of_all) {
  run_ranks_ok(4, [&](ProcessGroup& world) {
    const Part part(world);
    Adam optimizer(part.parameters);
    optimizer.set_model_parts(part.parts());
    GradScaler scaler({.init_scale = 8});
    for (const bool overflows : {true, false}) {
      part.set_gradients(make_whole().gradients(0));
      if (overflows && world.rank() == 2) part.parameters[0].mutable_grad()[0] = INFINITY;
      EXPECT_EQ(scaler.step(optimizer), !overflows);
      scaler.update();
    }
  });
}

TEST(ModelParts, what_is_not_the_optimizers_is_refused) {
  run_ranks_ok(1, [](ProcessGroup& world) {
    const Tensors parameters{trainable(at::ones({2}))};
    const std::shared_ptr<ProcessGroup> group(&world, [](auto*) {});
    Adam optimizer(parameters);
    expect_error(ErrorCode::kInvalid, {"not one of the optimizer's parameters"},
                 [&] { optimizer.set_model_parts({.layers = group, .divided = {at::ones({2})}}); });
    expect_error(ErrorCode::kInvalid, {"ModelParts::layers"},
                 [&] { optimizer.set_model_parts({.divided = parameters}); });
    parameters[0].mutable_grad() = at::ones({2});
    optimizer.step();
    expect_error(ErrorCode::kInvalid, {"before its first step"},
                 [&] { optimizer.set_model_parts({}); });
  });
}

}  // namespace
}  // namespace paceline::optim
