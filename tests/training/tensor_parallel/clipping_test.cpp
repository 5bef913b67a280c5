// Tests every way to divide a model between two ranks, in a training loop that the program writes
// itself, with every function that clips gradients: the result is the norm of one process, or an
// error. LibTorch's function is the exception: it sees only the rank's own gradients of a divided
// model, as docs/mistakes.md explains.

#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/planning/schedules/named_schedules.h"
#include "paceline/training/autograd/branch_functions.h"
#include "paceline/training/optim/clip_gradients.h"
#include "paceline/training/optim/grad_scaler.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/parallel/fully_shard.h"
#include "paceline/training/pipeline/pipeline.h"
#include "paceline/training/tensor_parallel/parallel_linear.h"

#include "tests/harness/borrowed_group.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::run_ranks_ok;
using Tensors = std::vector<at::Tensor>;

constexpr int kRanks = 2;
constexpr std::int64_t kWidth = 8, kRows = 6;

at::Tensor made_up(at::IntArrayRef sizes, double seed) {
  std::int64_t count = 1;
  for (const auto size : sizes) count *= size;
  return (at::arange(count, at::kDouble) * 1.37 + seed).sin().reshape(sizes).to(at::kFloat);
}

at::Tensor first_weight() { return made_up({kWidth, kWidth}, 1).requires_grad_(); }
at::Tensor second_weight() { return made_up({kWidth, kWidth}, 2).requires_grad_(); }
at::Tensor batch() { return made_up({kRanks * kRows, kWidth}, 3); }
at::Tensor loss_of(const at::Tensor& output) { return output.square().mean(); }

// Two weights that are applied one after the other.
struct Net : torch::nn::Module {
  Net() {
    first = register_parameter("first", first_weight());
    second = register_parameter("second", second_weight());
  }
  at::Tensor forward(const at::Tensor& x) const {
    return at::linear(at::tanh(at::linear(x, first)), second);
  }
  at::Tensor first, second;
};

double norm_in_one_process() {
  const Net net;
  loss_of(net.forward(batch())).backward();
  return optim::grad_norm(net.parameters());
}

// The outcome of each function: the norm of one process, a different norm, or an error.
enum class Outcome { kWhole, kOwn, kError };
using enum Outcome;

void expect_outcome(Outcome expected, const std::string& what,
                    const std::function<double()>& norm_of) {
  static const double whole = norm_in_one_process();
  std::optional<double> found;
  std::string error;
  try {
    found = norm_of();
  } catch (const Error& thrown) {
    EXPECT_EQ(thrown.code(), ErrorCode::kInvalid);
    error = thrown.what();
  }
  if (expected == kError) {
    EXPECT_FALSE(found.has_value()) << what << ": " << *found;
    EXPECT_THAT(error, testing::HasSubstr("optimizer")) << what;
    return;
  }
  ASSERT_TRUE(found.has_value()) << what << ": " << error;
  if (expected == kWhole) {
    EXPECT_NEAR(*found, whole, 1e-5 * whole) << what;
  } else {
    EXPECT_GT(std::abs(*found - whole), 1e-3 * whole) << what;
  }
}

// Clips with a limit that no norm exceeds, and expects these outcomes.
void expect_norms(const optim::Optimizer& optimizer, Outcome of_optimizer, Outcome of_parameters,
                  Outcome of_libtorch) {
  constexpr double kNoLimit = 1e9;
  const Tensors& parameters = optimizer.parameters();
  expect_outcome(of_optimizer, "clip_grad_norm(optimizer)",
                 [&] { return optim::clip_grad_norm(optimizer, kNoLimit); });
  expect_outcome(of_optimizer, "grad_norm(optimizer)", [&] { return optim::grad_norm(optimizer); });
  expect_outcome(of_parameters, "clip_grad_norm(parameters)",
                 [&] { return optim::clip_grad_norm(parameters, kNoLimit); });
  expect_outcome(of_parameters, "grad_norm(parameters)",
                 [&] { return optim::grad_norm(parameters); });
  expect_outcome(of_libtorch, "torch::nn::utils::clip_grad_norm_",
                 [&] { return torch::nn::utils::clip_grad_norm_(parameters, kNoLimit); });
}

at::Tensor part_of_batch(const ProcessGroup& group) {
  return batch().narrow(0, group.rank() * kRows, kRows);
}

TEST(Clipping, data_parallelism_has_whole_gradients) {
  for (const std::int64_t shards : {0, kRanks}) {
    run_ranks_ok(kRanks, [shards](ProcessGroup& group) {
      at::set_num_threads(1);
      DistributedDataParallelOptions options;
      options.logical_shards = shards;
      DistributedDataParallel model(std::make_shared<Net>(), harness::borrowed(group), options);
      const optim::Adam optimizer(model->parameters());
      loss_of(model->forward(part_of_batch(group))).backward();
      expect_norms(optimizer, kWhole, kWhole, kWhole);
    });
  }
}

TEST(Clipping, fully_shard_divides_gradients_from_stage_2_on) {
  for (const int stage : {1, 2, 3}) {
    run_ranks_ok(kRanks, [stage](ProcessGroup& group) {
      const auto net = std::make_shared<Net>();
      optim::Adam optimizer(net->parameters());
      auto model = fully_shard(net, harness::borrowed(group), optimizer, {.stage = stage});
      loss_of(model->forward(part_of_batch(group))).backward();
      const Outcome by_parameters = stage == 1 ? kWhole : kError;
      expect_norms(optimizer, kWhole, by_parameters, by_parameters);
    });
  }
}

TEST(Clipping, a_pipeline_needs_the_model_group) {
  for (const bool is_told : {false, true}) {
    run_ranks_ok(kRanks, [is_told](ProcessGroup& group) {
      const bool is_first = group.rank() == 0;
      const at::Tensor weight = is_first ? first_weight() : second_weight();
      const PipelineStage stage{.index = group.rank(),
                                .forward = [&](const Tensors& inputs) -> Tensors {
                                  const auto y = at::linear(inputs[0], weight);
                                  return {is_first ? at::tanh(y) : y};
                                },
                                .parameters = {weight}};
      Pipeline pipeline(harness::borrowed(group), pipeline_schedule("1f1b", kRanks, 2), {stage});
      optim::Adam optimizer({weight});
      if (is_told)
        optimizer.set_model_parts({.model = harness::borrowed(group), .layers = nullptr});
      pipeline.step(is_first ? split_micro_batches(batch(), 2) : std::vector<Tensors>{},
                    [](const Tensors& outputs, int) { return loss_of(outputs[0]); });
      expect_norms(optimizer, is_told ? kWhole : kError, kError, kOwn);
      if (is_told) return;
      optim::GradScaler scaler({.init_scale = 1});
      EXPECT_THROW(scaler.step(optimizer), Error) << "it looks at all gradients too";
    });
  }
}

TEST(Clipping, divided_layers_need_the_model_group) {
  for (const bool is_told : {false, true}) {
    run_ranks_ok(kRanks, [is_told](ProcessGroup& group) {
      const auto options = torch::nn::LinearOptions(kWidth, kWidth).bias(false);
      ColumnParallelLinear first(options, harness::borrowed(group));
      RowParallelLinear second(options, harness::borrowed(group));
      {
        const at::NoGradGuard no_grad;
        const std::int64_t part = kWidth / kRanks;
        first->weight.copy_(first_weight().narrow(0, group.rank() * part, part));
        second->weight.copy_(second_weight().narrow(1, group.rank() * part, part));
      }
      const Tensors parameters{first->weight, second->weight};
      optim::Adam optimizer(parameters);
      optim::LAMB lamb(parameters);
      if (is_told) {
        const optim::ModelParts parts{.model = harness::borrowed(group),
                                      .layers = harness::borrowed(group),
                                      .divided = parameters};
        optimizer.set_model_parts(parts);
        lamb.set_model_parts(parts);
      }
      loss_of(second(at::tanh(first(batch())))).backward();
      expect_norms(optimizer, is_told ? kWhole : kError, kError, kOwn);
      if (is_told) {
        lamb.step();
      } else {
        EXPECT_THROW(lamb.step(), Error) << "it needs each parameter's norm";
      }
    });
  }
}

// Two branches whose gradients add up to those of one process.
TEST(Clipping, branches_need_the_model_group_until_their_gradients_are_shared) {
  for (const bool is_told : {false, true}) {
    run_ranks_ok(kRanks, [is_told](ProcessGroup& group) {
      const GroupPtr shared = harness::borrowed(group);
      const at::Tensor first = first_weight(),
                       left = made_up({kWidth / 2, kWidth}, 4).requires_grad_(),
                       right = made_up({kWidth / 2, kWidth}, 5).requires_grad_();
      {  // the second weight of one process, its upper and lower half
        const at::NoGradGuard no_grad;
        left.copy_(second_weight().narrow(0, 0, kWidth / 2));
        right.copy_(second_weight().narrow(0, kWidth / 2, kWidth / 2));
      }
      const auto branch = [](const char* name, const at::Tensor& weight) {
        return Branch{.name = name,
                      .forward = [weight](const Tensors& x) { return at::linear(x[0], weight); },
                      .parameters = {weight}};
      };
      const std::vector<Branch> branches{branch("left", left), branch("right", right)};
      const std::vector<int> owner{0, 1};
      optim::Adam optimizer({first, left, right});
      if (is_told) {
        optimizer.set_model_parts({.model = shared,
                                   .layers = nullptr,
                                   .copies = group.rank() > 0 ? Tensors{first} : Tensors{}});
      }
      const at::Tensor x = at::tanh(at::linear(batch(), first));
      loss_of(at::cat(parallel_branches(shared, {x}, branches, owner), 1)).backward();
      expect_norms(optimizer, is_told ? kWhole : kError, kError, kOwn);
      if (is_told) return;
      share_branch_gradients(group, branches, owner);
      expect_norms(optimizer, kWhole, kWhole, kWhole);
    });
  }
}

}  // namespace
}  // namespace paceline
