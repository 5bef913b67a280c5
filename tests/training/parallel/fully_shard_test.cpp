// Compares fully_shard with DistributedDataParallel and the whole step on every rank: bitwise equal
// for every stage.

#include "paceline/training/parallel/fully_shard.h"

#include <algorithm>
#include <functional>
#include <mutex>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <torch/torch.h>

#include "paceline/training/optim/clip_gradients.h"
#include "paceline/training/optim/grad_scaler.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/parallel/communication_hook.h"
#include "paceline/training/parallel/join.h"
#include "paceline/training/parallel/reducer/reducer.h"
#include "paceline/training/tensor/tensor_marks.h"

#include "tests/harness/borrowed_group.h"
#include "tests/harness/expect_error.h"
#include "tests/harness/process_ranks.h"
#include "tests/harness/says.h"
#include "tests/harness/shared_counter.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

using harness::borrowed;
using harness::run_ranks;
using harness::run_ranks_ok;
using harness::Says;

constexpr std::int64_t kWidth = 40;
constexpr std::int64_t kTowerSteps = 4;
constexpr std::size_t kSmallUnits = 4096;  // more units than there is room for at a time
constexpr int kDividedHosts = 4;  // a value for `stage`: stage 3, and hosts divide the parameters

// A tied weight, a gradient of 640 KB, a layer for some inputs only, and BatchNorm. With
// `backwards` the parameters are named from the last used to the first, so that the gradients do
// not come in the order of the units.
struct Tower : torch::nn::Module {
  explicit Tower(bool backwards) {
    const auto linear = [](std::int64_t in, std::int64_t out) {
      return torch::nn::Linear(in, out);
    };
    std::vector<std::pair<std::string, torch::nn::Linear*>> parts{
        {"tied", &tied},           {"a", &a},       {"b", &b},          {"c", &c},
        {"sometimes", &sometimes}, {"wide", &wide}, {"narrow", &narrow}};
    if (backwards) std::reverse(parts.begin(), parts.end());
    for (const auto& [name, part] : parts) {
      const std::int64_t in = name == "narrow" ? 4096 : kWidth;
      const std::int64_t out = name == "wide" ? 4096 : name == "narrow" ? 3 : kWidth;
      *part = register_module(name, linear(in, out));
    }
    norm = register_module("norm", torch::nn::BatchNorm1d(kWidth));
  }
  at::Tensor forward(const at::Tensor& input, bool uses_all = true) {
    at::Tensor x = torch::tanh(tied(input));
    x = torch::tanh(norm(b(torch::tanh(a(x)))));
    x = torch::tanh(at::linear(c(x), tied->weight.t()));
    if (uses_all) x = x + sometimes(x);
    return narrow(torch::relu(wide(x)));
  }
  torch::nn::Linear tied{nullptr}, a{nullptr}, b{nullptr}, c{nullptr}, sometimes{nullptr};
  torch::nn::Linear wide{nullptr}, narrow{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

std::shared_ptr<Tower> make_tower(bool backwards = false) {
  static std::mutex mutex;  // LibTorch's generator belongs to the process
  const std::lock_guard lock(mutex);
  torch::manual_seed(3);
  return std::make_shared<Tower>(backwards);
}

at::Tensor tower_input(std::int64_t step, int rank) {
  const auto seed = static_cast<std::uint64_t>(100 * step + rank);
  return at::randn({6, kWidth}, at::detail::createCPUGenerator(seed));
}

at::Tensor tower_loss(const at::Tensor& output) { return output.square().mean(); }

using MakeOptimizer =
    std::function<std::unique_ptr<optim::Optimizer>(const std::vector<at::Tensor>&)>;

std::unique_ptr<optim::Optimizer> make_adam(const std::vector<at::Tensor>& parameters) {
  return std::make_unique<optim::Adam>(parameters, optim::AdamOptions{.lr = 0.01});
}

// A replica whose step is divided as in the stage. Stage 0: DistributedDataParallel, and every rank
// takes the whole step.
struct Trainee {
  Trainee(ProcessGroup& group, int stage, std::shared_ptr<Tower> tower,
          const MakeOptimizer& make = make_adam, DistributedDataParallelOptions options = {})
      : net(std::move(tower)),
        optimizer(make(net->parameters())),
        model(net, borrowed(group),
              paceline::detail::sharded_options(*optimizer,
                                                {.stage = std::min(stage, 3),
                                                 .unit_bytes = kSmallUnits,
                                                 .shard_across_hosts = stage == kDividedHosts,
                                                 .data_parallel = std::move(options)})) {}
  Trainee(ProcessGroup& group, std::shared_ptr<Tower> tower,
          const std::function<FullyShardOptions(Tower&)>& options)
      : net(std::move(tower)),
        optimizer(make_adam(net->parameters())),
        model(net, borrowed(group), paceline::detail::sharded_options(*optimizer, options(*net))) {}
  double clip(double norm) const { return optim::clip_grad_norm(*optimizer, norm); }

  std::shared_ptr<Tower> net;
  std::unique_ptr<optim::Optimizer> optimizer;
  DistributedDataParallel<Tower> model;
};

void expect_same(const Trainee& got, const Trainee& wanted, const std::string& what) {
  const auto names = wanted.net->named_parameters();
  for (const auto& item : got.net->named_parameters())
    EXPECT_TRUE(at::equal(item.value(), names[item.key()])) << what << ": " << item.key();
  const auto state = got.optimizer->state();
  const auto expected = wanted.optimizer->state();
  ASSERT_EQ(state.size(), expected.size());
  for (std::size_t i = 0; i < state.size(); ++i)
    EXPECT_TRUE(at::equal(state[i].second, expected[i].second)) << what << ": " << state[i].first;
}

// Runs `train` with DistributedDataParallel and with each stage, and compares the results.
void expect_bits_of_ddp(int ranks, const std::function<void(Trainee&, int rank)>& train,
                        const MakeOptimizer& make = make_adam, bool backwards = false,
                        const harness::RanksOptions& options = {}) {
  const auto body = [&](ProcessGroup& group) {
    Trainee whole(group, 0, make_tower(backwards), make);
    train(whole, group.rank());
    for (const int stage : {1, 2, 3, kDividedHosts}) {
      Trainee divided(group, stage, make_tower(backwards), make);
      train(divided, group.rank());
      expect_same(divided, whole,
                  fmt::format("rank {} of {}, stage {}", group.rank(), ranks, stage));
      group.barrier();
    }
  };
  run_ranks_ok(ranks, body, options);
}

void train_plainly(Trainee& trainee, int rank) {
  for (std::int64_t step = 0; step < kTowerSteps; ++step) {
    trainee.optimizer->zero_grad();
    tower_loss(trainee.model->forward(tower_input(step, rank))).backward();
    trainee.clip(0.1);
    trainee.optimizer->step();
  }
}

TEST(FullyShard, every_stage_has_the_bits_of_data_parallelism) {
  for (const int ranks : {1, 2, 3, 4, 8}) expect_bits_of_ddp(ranks, train_plainly);
}

TEST(FullyShard, gradients_may_come_in_any_order) {
  expect_bits_of_ddp(2, train_plainly, make_adam, true);
}

harness::RanksOptions on_hosts(int ranks_per_host) {
  return {.adjust = [ranks_per_host](int rank, GroupOptions& group) {
    group.link.host = "h" + std::to_string(rank / ranks_per_host);
  }};
}

TEST(FullyShard, each_host_has_a_copy) {
  expect_bits_of_ddp(4, train_plainly, make_adam, false, on_hosts(2));
  expect_bits_of_ddp(2, train_plainly, make_adam, false, on_hosts(1));
  expect_bits_of_ddp(6, train_plainly, make_adam, false, on_hosts(2));
}

TEST(FullyShard, chosen_units_change_no_bits) {
  for (const bool divides : {false, true}) {
    run_ranks_ok(
        2,
        [divides](ProcessGroup& group) {
          Trainee whole(group, 0, make_tower());
          train_plainly(whole, group.rank());
          Trainee divided(group, make_tower(), [divides](Tower& tower) -> FullyShardOptions {
            const auto both = [](const torch::nn::Linear& one, const torch::nn::Linear& other) {
              return std::vector{one->weight, one->bias, other->weight, other->bias};
            };
            return {.unit_bytes = kSmallUnits,
                    .units = {both(tower.tied, tower.narrow), both(tower.wide, tower.a)},
                    .shard_across_hosts = divides};
          });
          train_plainly(divided, group.rank());
          expect_same(divided, whole, fmt::format("rank {}", group.rank()));
        },
        divides ? on_hosts(1) : harness::RanksOptions{});
  }
}

TEST(FullyShard, norms_over_whole_parameters_are_the_same) {
  const MakeOptimizer make_lamb = [](const auto& parameters) {
    return std::make_unique<optim::LAMB>(parameters, optim::LAMBOptions{.lr = 0.01});
  };
  for (const int ranks : {2, 3}) expect_bits_of_ddp(ranks, train_plainly, make_lamb);
}

TEST(FullyShard, gradients_accumulate_without_communication) {
  expect_bits_of_ddp(2, [](Trainee& trainee, int rank) {
    for (std::int64_t step = 0; step < kTowerSteps; ++step) {
      trainee.optimizer->zero_grad();
      {
        const auto paused = trainee.model.no_sync();
        tower_loss(trainee.model->forward(tower_input(step, rank), step % 2 == 0)).backward();
      }
      tower_loss(trainee.model->forward(tower_input(step + 50, rank), step % 2 == 1)).backward();
      trainee.optimizer->step();
    }
  });
}

TEST(FullyShard, gradients_of_two_passes_are_added) {
  for (const int stage : {2, 3}) {
    run_ranks_ok(2, [stage](ProcessGroup& group) {
      const MakeOptimizer make_sgd = [](const auto& parameters) {
        return std::make_unique<optim::SGD>(parameters, optim::SGDOptions{.lr = 1});
      };
      Trainee whole(group, 0, make_tower(), make_sgd);
      Trainee divided(group, stage, make_tower(), make_sgd);
      for (Trainee* trainee : {&whole, &divided}) {
        trainee->net->eval();
        trainee->model.zero_grad();
        for (int pass = 0; pass < 3; ++pass)
          tower_loss(trainee->model->forward(tower_input(pass, group.rank()), pass == 1))
              .backward();
        trainee->optimizer->step();
      }
      const auto expected = whole.net->named_parameters();
      for (const auto& item : divided.net->named_parameters())
        EXPECT_TRUE(at::allclose(item.value(), expected[item.key()], 1e-5, 1e-6)) << item.key();
      group.barrier();
    });
  }
}

TEST(FullyShard, the_wrappers_zero_grad_drops_divided_gradients) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    Trainee trainee(group, 2, make_tower());
    tower_loss(trainee.model->forward(tower_input(0, group.rank()))).backward();
    EXPECT_GT(optim::grad_norm(*trainee.optimizer), 0);
    trainee.model.zero_grad();
    EXPECT_EQ(optim::grad_norm(*trainee.optimizer), 0);
  });
}

// LibTorch's zero_grad() of a module knows nothing of the optimizer.
TEST(FullyShard, the_modules_zero_grad_drops_divided_gradients) {
  expect_bits_of_ddp(2, [](Trainee& trainee, int rank) {
    for (std::int64_t step = 0; step < kTowerSteps; ++step) {
      if (step == 1) {
        for (const auto& child : trainee.net->children()) child->zero_grad(true);
      } else {
        trainee.net->zero_grad(true);
      }
      tower_loss(trainee.model->forward(tower_input(step, rank))).backward();
      if (step == 2) trainee.net->a->zero_grad(true);  // the other parameters are updated
      if (step == 3) trainee.net->wide->weight.mutable_grad() = at::Tensor();
      trainee.optimizer->step();
    }
  });
}

TEST(FullyShard, clipping_the_parameters_themselves_is_an_error) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    Trainee trainee(group, 2, make_tower());
    tower_loss(trainee.model->forward(tower_input(0, group.rank()))).backward();
    expect_error(ErrorCode::kInvalid,
                 {"divided among the ranks (fully_shard)", "pass the optimizer"},
                 [&] { optim::clip_grad_norm(trainee.net->parameters(), 1.0); });
  });
}

// LibTorch's own functions would find no gradients, and do nothing.
TEST(FullyShard, libtorchs_functions_on_divided_gradients_are_errors) {
  for (const int stage : {2, 3}) {
    run_ranks_ok(2, [stage](ProcessGroup& group) {
      Trainee trainee(group, stage, make_tower());
      const auto parameters = trainee.net->parameters();
      torch::optim::SGD foreign(parameters, 0.1);
      for (int step = 0; step < 2; ++step) {
        trainee.model.zero_grad();
        tower_loss(trainee.model->forward(tower_input(step, group.rank()))).backward();
        const std::vector<std::string> words{"divided among the ranks (fully_shard)",
                                             "with the optimizer instead"};
        expect_error(ErrorCode::kInvalid, words,
                     [&] { torch::nn::utils::clip_grad_norm_(parameters, 1.0); });
        expect_error(ErrorCode::kInvalid, words,
                     [&] { torch::nn::utils::clip_grad_value_(parameters, 1.0); });
        expect_error(ErrorCode::kInvalid, words, [&] { foreign.step(); });
        trainee.optimizer->step();
        trainee.net->zero_grad();
      }
    });
  }
}

// The parameters are used on all ranks, on rank 1 only, and on no rank, in turn.
TEST(FullyShard, unused_parameters_are_as_in_data_parallelism) {
  expect_bits_of_ddp(3, [](Trainee& trainee, int rank) {
    for (std::int64_t step = 0; step < 6; ++step) {
      trainee.optimizer->zero_grad();
      const bool uses_all = step % 3 == 0 || (step % 3 == 1 && rank == 1);
      tower_loss(trainee.model->forward(tower_input(step, rank), uses_all)).backward();
      trainee.optimizer->step();
    }
  });
}

TEST(FullyShard, frozen_and_thawed_parameters_are_as_in_data_parallelism) {
  expect_bits_of_ddp(2, [](Trainee& trainee, int rank) {
    for (std::int64_t step = 0; step < 6; ++step) {
      for (auto& parameter : trainee.net->wide->parameters())
        parameter.set_requires_grad(step < 2 || step >= 4);
      trainee.net->a->weight.set_requires_grad(step != 3);
      trainee.optimizer->zero_grad();
      tower_loss(trainee.model->forward(tower_input(step, rank))).backward();
      trainee.clip(0.1);
      trainee.optimizer->step();
    }
  });
}

// A rank whose inputs have ended takes part with zero gradients.
TEST(FullyShard, ranks_with_different_numbers_of_inputs_are_as_in_data_parallelism) {
  expect_bits_of_ddp(3, [](Trainee& trainee, int rank) {
    JoinedStep step([&] {
      trainee.clip(0.1);
      trainee.optimizer->step();
      trainee.optimizer->zero_grad();
    });
    join(trainee.model, step, [&] {
      for (int i = 0; i < 2 + rank; ++i) {
        tower_loss(trainee.model->forward(tower_input(i, rank), i % 2 == rank % 2)).backward();
        step();
      }
    });
  });
}

TEST(FullyShard, ranks_without_inputs_drop_the_gradients_of_the_step_before) {
  for (const bool clears_first : {false, true}) {
    expect_bits_of_ddp(2, [clears_first](Trainee& trainee, int rank) {
      join(trainee.model, trainee.optimizer.get(), [&] {
        for (int i = 0; i < 3 + 2 * rank; ++i) {
          if (clears_first) trainee.optimizer->zero_grad();
          tower_loss(trainee.model->forward(tower_input(i, rank))).backward();
          trainee.optimizer->step();
          if (!clears_first) trainee.optimizer->zero_grad();
        }
      });
    });
  }
}

TEST(FullyShard, sixteen_bit_parameters_have_masters_in_parts) {
  const auto body = [](ProcessGroup& group) {
    const auto make = [] {
      auto tower = make_tower();
      tower->to(at::kBFloat16);
      return tower;
    };
    const auto train = [&](Trainee& trainee) {
      for (std::int64_t step = 0; step < kTowerSteps; ++step) {
        trainee.optimizer->zero_grad();
        const at::Tensor input = tower_input(step, group.rank()).to(at::kBFloat16);
        tower_loss(trainee.model->forward(input)).backward();
        trainee.optimizer->step();
      }
    };
    Trainee whole(group, 0, make());
    train(whole);
    for (const int stage : {1, 2, 3, kDividedHosts}) {
      Trainee divided(group, stage, make());
      train(divided);
      expect_same(divided, whole, fmt::format("rank {}, stage {}", group.rank(), stage));
      group.barrier();
    }
  };
  run_ranks_ok(3, body);
  run_ranks_ok(3, body, on_hosts(1));
  run_ranks_ok(4, body, on_hosts(2));
}

TEST(FullyShard, logical_shards_have_the_same_bits_for_every_number_of_ranks) {
  constexpr std::int64_t kShards = 4;
  std::vector<at::Tensor> expected;
  for (const int stage : {0, 2, 3}) {
    for (const int ranks : {1, 2, 4}) {
      run_ranks_ok(ranks, [&](ProcessGroup& group) {
        Trainee trainee(group, stage, make_tower(), make_adam, {.logical_shards = kShards});
        const std::int64_t own = kShards / ranks;
        for (std::int64_t step = 0; step < kTowerSteps; ++step) {
          for (std::int64_t i = 0; i < own; ++i) {
            trainee.model.reducer().set_synchronize(i + 1 == own);
            const auto shard = static_cast<int>(group.rank() * own + i);
            tower_loss(trainee.model->forward(tower_input(step, shard), shard != 2)).backward();
          }
          trainee.clip(0.1);
          trainee.optimizer->step();
        }
        group.barrier();
        if (group.rank() != 0) return;
        const auto parameters = trainee.net->parameters();
        for (const auto& parameter : parameters) {
          if (stage == 0 && ranks == 1) expected.push_back(parameter.detach().clone());
        }
        for (std::size_t i = 0; i < parameters.size(); ++i)
          EXPECT_TRUE(at::equal(parameters[i], expected[i])) << stage << ", " << ranks << ": " << i;
      });
    }
  }
}

TEST(FullyShard, a_rank_keeps_its_part_of_gradients_and_state) {
  constexpr int kRanks = 4;
  run_ranks_ok(kRanks, [](ProcessGroup& group) {
    Trainee trainee(group, 2, make_tower());
    tower_loss(trainee.model->forward(tower_input(0, group.rank()))).backward();
    std::int64_t elements = 0;
    for (const auto& parameter : trainee.net->parameters()) {
      EXPECT_FALSE(own_gradient(parameter).defined());
      elements += parameter.numel();
    }
    const auto own =
        static_cast<std::int64_t>(core_of(*trainee.optimizer).num_gradient_bytes() / 4);
    EXPECT_EQ(all_reduce_value(group, own, ReduceOp::kSum), elements);
    // Units are divided in blocks of 1,024 elements.
    EXPECT_LE(trainee.optimizer->num_state_bytes(), 8 * (elements / kRanks + 24 * 1024));
  });
}

TEST(FullyShard, all_ranks_skip_a_step_whose_gradients_overflow_in_one_part) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    Trainee trainee(group, 2, make_tower());
    optim::GradScaler scaler;
    const auto before = trainee.net->narrow->bias.detach().clone();
    auto loss = scaler.scale(tower_loss(trainee.model->forward(tower_input(0, group.rank()))));
    loss.backward();
    // Elements that only one rank has.
    if (group.rank() == 1) core_of(*trainee.optimizer).gradient_memory().front().fill_(INFINITY);
    const auto own = core_of(*trainee.optimizer).gradients().front().tensor.numel();
    EXPECT_GT(all_reduce_value(group, own, ReduceOp::kMax), 0);
    EXPECT_FALSE(scaler.step(*trainee.optimizer));
    EXPECT_TRUE(at::equal(trainee.net->narrow->bias, before));
  });
}

TEST(FullyShard, goes_on_after_an_exception_in_every_ranks_backward_pass) {
  expect_bits_of_ddp(2, [](Trainee& trainee, int rank) {
    trainee.optimizer->zero_grad();
    auto input = tower_input(0, rank).set_requires_grad(true);
    input.register_hook(
        [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("of the test"); });
    EXPECT_THROW(tower_loss(trainee.model->forward(input)).backward(), std::runtime_error);
    train_plainly(trainee, rank);
  });
}

// One variable, whose stage is a flag of the program.
TEST(FullyShard, a_wrapper_is_a_handle_that_can_be_assigned) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    const auto tower = make_tower();
    DistributedDataParallel model(tower, borrowed(group));
    for (const int stage : {0, 1, 2}) {
      const auto next = make_tower();
      optim::Adam adam(next->parameters());
      model = fully_shard(next, borrowed(group), adam, {.stage = stage});
      auto same = model;
      EXPECT_EQ(&same.module(), next.get());
      same.set_requires_gradient_sync(false);
      EXPECT_FALSE(model.reducer().synchronizes());
      model.set_requires_gradient_sync(true);
      tower_loss(same(tower_input(0, group.rank()))).backward();
      adam.step();
      model = DistributedDataParallel(tower, borrowed(group));  // before `adam` ends
    }
    tower_loss(model(tower_input(1, group.rank()))).backward();
  });
}

TEST(FullyShard, a_head_that_was_replaced_after_it_is_an_error_in_the_first_pass) {
  for (const int stage : {0, 3}) {
    run_ranks_ok(2, [&](ProcessGroup& group) {
      torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::Linear(4, 2));
      optim::SGD optimizer(net->parameters(), 0.1);
      auto model = fully_shard(net, borrowed(group), optimizer, {.stage = stage});
      net->replace_module("1", torch::nn::Linear(4, 2).ptr());
      const at::Tensor input = at::ones({2, 3});
      expect_error(ErrorCode::kInvalid, {"did not have parameter 1.weight when it was wrapped"},
                   [&] { model->forward(input); });
    });
  }
}

TEST(FullyShard, what_does_not_fit_is_an_error_on_every_rank) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    const auto tower = make_tower();
    optim::Adam adam(tower->parameters());
    expect_error(ErrorCode::kInvalid, {"stage 4"},
                 [&] { fully_shard(tower, borrowed(group), adam, {.stage = 4}); });
    expect_error(ErrorCode::kInvalid, {"units of 0 bytes"},
                 [&] { fully_shard(tower, borrowed(group), adam, {.unit_bytes = 0}); });
    const auto wide = tower->wide->parameters();
    expect_error(ErrorCode::kInvalid, {"units divide gradients, which stage 1 does not"},
                 [&] { fully_shard(tower, borrowed(group), adam, {.stage = 1, .units = {wide}}); });
    expect_error(ErrorCode::kInvalid, {"is in unit 0 and in unit 1"}, [&] {
      fully_shard(tower, borrowed(group), adam, {.units = {wide, wide}});
    });
    expect_error(ErrorCode::kInvalid, {"unit 0 has a tensor that is not one of the parameters"},
                 [&] { fully_shard(tower, borrowed(group), adam, {.units = {{at::zeros({3})}}}); });
    optim::Adam some(wide);
    expect_error(
        ErrorCode::kInvalid,
        {"parameter tied.weight requires a gradient, but the optimizer that fully_shard() divides"},
        [&] { fully_shard(tower, borrowed(group), some); });
    auto more = tower->parameters();
    more.push_back(at::zeros({3}).set_requires_grad(true));
    optim::Adam foreign(more);
    expect_error(ErrorCode::kInvalid, {"parameter 16 of the optimizer is not one of the module's"},
                 [&] { fully_shard(tower, borrowed(group), foreign); });
    auto model = fully_shard(tower, borrowed(group), adam, {.stage = 2});
    expect_error(ErrorCode::kInvalid, {"take stage 1"},
                 [&] { model.register_comm_hook(std::make_shared<CompressHook>(at::kBFloat16)); });
    expect_error(ErrorCode::kInvalid,
                 {"parameter tied.weight belongs to a module that fully_shard() has divided"},
                 [&] { DistributedDataParallel<Tower>(tower, borrowed(group)); });
  });
}

TEST(FullyShard, one_copy_a_host_needs_as_many_ranks_on_each) {
  run_ranks_ok(
      3,
      [](ProcessGroup& group) {
        const auto tower = make_tower();
        optim::Adam adam(tower->parameters());
        expect_error(ErrorCode::kUnsupported, {"the same number of ranks on each: there are"},
                     [&] { fully_shard(tower, borrowed(group), adam); });
      },
      on_hosts(2));
}

constexpr std::int64_t kWideLayers = 12;
constexpr std::int64_t kWide = 512;  // each weight is a unit of 1 MB

torch::nn::Sequential wide_layers() {
  torch::manual_seed(4);
  torch::nn::Sequential net;
  for (std::int64_t i = 0; i < kWideLayers; ++i)
    net->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWide, kWide).bias(false)));
  return net;
}

// Two handles of whole_parameters() are held at the same time, and one outlives the optimizer.
TEST(FullyShard, whole_parameters_may_be_held_several_times_and_long) {
  run_ranks_ok(
      4,
      [](ProcessGroup& group) {
        auto net = wide_layers();
        auto adam = std::make_unique<optim::Adam>(net->parameters(), optim::AdamOptions{});
        auto model = std::make_unique<DistributedDataParallel<torch::nn::SequentialImpl>>(
            net, borrowed(group),
            paceline::detail::sharded_options(*adam, {.shard_across_hosts = true}));
        // The operation fetches the values from rank 0's host if necessary.
        const at::Tensor first = net->parameters()[0].detach().clone();
        auto outer = adam->whole_parameters();
        adam->whole_parameters().reset();
        adam->writable_parameters().reset();
        // Reads through a pointer, because an operation would fetch the values.
        const auto is_here = [&] {
          const auto* const values = static_cast<const float*>(net->parameters()[0].data_ptr());
          return std::equal(values, values + first.numel(), first.data_ptr<float>());
        };
        EXPECT_TRUE(is_here());
        auto last = adam->whole_parameters();
        model.reset();
        adam.reset();
        outer.reset();
        EXPECT_TRUE(is_here());
        group.barrier();
        last.reset();
      },
      on_hosts(2));
}

TEST(FullyShardProcesses, a_divided_parameter_that_is_read_through_a_pointer_is_named) {
  testing::internal::CaptureStderr();
  const auto results = harness::run_process_ranks(
      4,
      [](ProcessGroup& group) {
        at::set_num_threads(1);
        auto net = wide_layers();
        optim::Adam adam(net->parameters());
        auto model = fully_shard(net, borrowed(group), adam, {.shard_across_hosts = true});
        if (group.rank() == 1) {
          const volatile auto* const values =
              static_cast<const float*>(net->parameters()[5].data_ptr());
          return std::to_string(values[3]);
        }
        group.barrier();
        return std::string();
      },
      on_hosts(2));
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              Says("divided.read_by_pointer", "parameter 5.weight"));
  EXPECT_EQ(results[1].signal, SIGSEGV);
  EXPECT_EQ(results[0].code, ErrorCode::kPeerLost);
}

// All units have the same size, so that the ranks' collectives match although they are for
// different units.
TEST(FullyShard, ranks_that_use_divided_parameters_in_different_orders_are_told) {
  for (const int ranks_per_host : {1, 2}) {
    const auto results = run_ranks(
        4,
        [](ProcessGroup& group) {
          auto net = wide_layers();
          optim::Adam adam(net->parameters());
          auto model = fully_shard(net, borrowed(group), adam, {.shard_across_hosts = true});
          const at::NoGradGuard no_grad;
          for (std::size_t i = 0; i < 8; ++i) {
            const auto at = group.rank() == 1 ? 7 - i : i;
            (void)at::linear(at::ones({1, kWide}), net->parameters()[at]);
          }
          adam.step();
        },
        on_hosts(ranks_per_host));
    std::size_t num_told = 0;
    for (const auto& result : results) {
      ASSERT_TRUE(result.error.has_value());
      if (result.error->code() != ErrorCode::kInvalid) continue;
      EXPECT_THAT(result.error->what(), Says("divided.order_differs"));
      EXPECT_THAT(result.error->what(), testing::HasSubstr("parameter 7.weight"));
      EXPECT_THAT(result.error->what(), testing::HasSubstr("parameter 0.weight"));
      ++num_told;
    }
    EXPECT_GE(num_told, 2U);
  }
}

// The victim is killed somewhere in a pass or a step. The weights may be half updated, so no rank
// may continue.
TEST(FullyShardProcesses, a_rank_that_is_killed_is_named_by_the_ranks_of_all_hosts) {
  for (int victim = 0; victim < 8; ++victim) {
    const int stage = victim < 4 ? 3 : kDividedHosts;
    harness::SharedCounter running;
    const auto results = harness::run_process_ranks(
        4,
        [&](ProcessGroup& group) {
          at::set_num_threads(1);
          Trainee trainee(group, stage, make_tower());
          for (int step = 0;; ++step) {
            trainee.optimizer->zero_grad();
            tower_loss(trainee.model->forward(tower_input(step, group.rank()))).backward();
            trainee.clip(0.1);
            trainee.optimizer->step();
            if (step == 3) running.add();
          }
          return std::string();
        },
        on_hosts(2),
        [&](const std::vector<pid_t>& pids) {
          running.wait_for(4, Deadline::after(30s));
          ::kill(pids[static_cast<std::size_t>(victim % 4)], SIGKILL);
        });
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == victim % 4) continue;
      const auto& result = results[static_cast<std::size_t>(rank)];
      EXPECT_TRUE(result.threw);
      EXPECT_THAT(result.report, testing::HasSubstr(fmt::format("rank {}", victim % 4)));
    }
  }
}

}  // namespace
}  // namespace paceline
