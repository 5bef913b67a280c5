#include "paceline/training/parallel/join.h"

#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/engine/collectives/algorithms/schedule.h"
#include "paceline/training/optim/clip_gradients.h"
#include "paceline/training/optim/exponential_moving_average.h"
#include "paceline/training/optim/lr_scheduler.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/tensor/collectives.h"

#include "tests/harness/borrowed_group.h"
#include "tests/harness/process_ranks.h"
#include "tests/harness/says.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::borrowed;
using harness::Says;

using ::testing::HasSubstr;

constexpr double kRate = 0.1;

// The number of inputs of each rank.
const std::vector<std::vector<int>> kNumInputs = {{3, 5}, {5, 3}, {2, 0, 4}, {1, 4, 4, 2}};

struct Line : torch::nn::Module {
  Line() {
    weight = register_parameter("weight", at::full({4}, 0.5));
    rare = register_parameter("rare", at::ones({4}));
    seen = register_buffer("seen", at::zeros({1}));
  }
  at::Tensor forward(const at::Tensor& input, bool uses_rare) {
    seen += 1;
    at::Tensor sum = (weight * input).square().sum();
    return uses_rare ? sum + (rare * input).sum() : sum;
  }
  at::Tensor weight, rare, seen;
};

at::Tensor input_of(int rank, int step) {
  return at::arange(4, at::kFloat) * 0.1F * static_cast<float>(1 + rank) + 0.05F * step;
}
bool uses_rare(int rank, int step) { return (rank + step) % 2 == 0; }

// The result of one process: plain gradient descent with averages in which ranks without inputs
// count as zero (`by_all`), or do not count.
std::pair<at::Tensor, at::Tensor> expected(const std::vector<int>& num_inputs, bool by_all) {
  Line line;
  for (int step = 0; step < *std::max_element(num_inputs.begin(), num_inputs.end()); ++step) {
    int active = 0;
    for (auto& parameter : line.parameters()) parameter.mutable_grad() = at::Tensor();
    for (int rank = 0; rank < static_cast<int>(num_inputs.size()); ++rank) {
      if (step >= num_inputs[static_cast<std::size_t>(rank)]) continue;
      ++active;
      line.forward(input_of(rank, step), uses_rare(rank, step)).backward();
    }
    const at::NoGradGuard no_grad;
    const double divisor = by_all ? static_cast<double>(num_inputs.size()) : active;
    for (auto& parameter : line.parameters()) {
      if (parameter.grad().defined()) parameter -= kRate * parameter.grad() / divisor;
    }
  }
  return {line.weight.detach(), line.rare.detach()};
}

template <class Step>
void train_with_inputs(DistributedDataParallel<Line>& model, int num_inputs, int rank, Step step) {
  for (int i = 0; i < num_inputs; ++i) {
    model.forward(input_of(rank, i), uses_rare(rank, i)).backward();
    step();
  }
}

TEST(Join, ranks_without_inputs_count_as_zero_and_end_with_the_same_model) {
  for (const auto& num_inputs : kNumInputs) {
    const auto [weight, rare] = expected(num_inputs, true);
    for (const bool sharded : {false, true}) {
      const int world = static_cast<int>(num_inputs.size());
      harness::run_ranks_ok(world, [&](ProcessGroup& group) {
        DistributedDataParallel model(std::make_shared<Line>(), borrowed(group));
        optim::SGD optimizer(model->parameters(), {.lr = kRate});
        if (sharded) core_of(optimizer).shard(borrowed(group));
        join(model, &optimizer, [&] {
          train_with_inputs(model, num_inputs[static_cast<std::size_t>(group.rank())], group.rank(),
                            [&] {
                              optimizer.step();
                              optimizer.zero_grad();
                            });
        });
        EXPECT_TRUE(at::allclose(model.module().weight, weight, 1e-4, 1e-6)) << sharded;
        EXPECT_TRUE(at::allclose(model.module().rare, rare, 1e-4, 1e-6)) << sharded;
        EXPECT_EQ(model.module().seen.item<float>(),
                  *std::max_element(num_inputs.begin(), num_inputs.end()));
        // A step after join() is an ordinary step.
        model->zero_grad();
        model.forward(input_of(group.rank(), 9), true).backward();
        at::Tensor sum = at::zeros({4});
        for (int rank = 0; rank < world; ++rank) sum += input_of(rank, 9);
        EXPECT_TRUE(at::allclose(model.module().rare.grad(), sum / world, 1e-4, 1e-6));
      });
    }
  }
}

TEST(Join, may_divide_by_the_number_of_ranks_with_inputs) {
  for (const auto& num_inputs : kNumInputs) {
    const auto [weight, rare] = expected(num_inputs, false);
    harness::run_ranks_ok(static_cast<int>(num_inputs.size()), [&](ProcessGroup& group) {
      DistributedDataParallel model(std::make_shared<Line>(), borrowed(group));
      optim::SGD optimizer(model->parameters(), {.lr = kRate});
      join(
          model, &optimizer,
          [&] {
            train_with_inputs(model, num_inputs[static_cast<std::size_t>(group.rank())],
                              group.rank(), [&] {
                                optimizer.step();
                                optimizer.zero_grad();
                              });
          },
          false);
      EXPECT_TRUE(at::allclose(model.module().weight, weight, 1e-4, 1e-6));
      EXPECT_TRUE(at::allclose(model.module().rare, rare, 1e-4, 1e-6));
    });
  }
}

TEST(Join, several_passes_of_a_step_add_up_on_ranks_without_inputs_too) {
  harness::run_ranks_ok(2, [](ProcessGroup& group) {
    const int own = group.rank() == 0 ? 1 : 4;
    const auto train = [&](bool joined) {
      DistributedDataParallel model(std::make_shared<Line>(), borrowed(group));
      optim::SGD optimizer(model->parameters(), {.lr = 0.01, .momentum = 0.9});
      JoinedStep take_step([&] {
        optimizer.step();
        optimizer.zero_grad();
      });
      const auto loop = [&](int num_steps) {
        for (int step = 0; step < num_steps; ++step) {
          for (const int input : {2 * step, 2 * step + 1}) {
            const at::Tensor loss = model.forward(input_of(group.rank(), input), true);
            (step < own ? loss : loss * 0).backward();
          }
          take_step();
        }
      };
      joined ? join(model, take_step, [&] { loop(own); }) : loop(4);
      loop(1);  // with the momenta
      return model.module().weight.detach().clone();
    };
    EXPECT_TRUE(at::allclose(train(true), train(false), 1e-5, 1e-7));
  });
}

TEST(Join, an_error_leaves_the_model_as_usable_on_every_rank) {
  harness::run_ranks_ok(2, [](ProcessGroup& group) {
    DistributedDataParallelOptions options;
    options.non_finite = NonFinite::kError;
    DistributedDataParallel model(std::make_shared<Line>(), borrowed(group), options);
    optim::SGD optimizer(model->parameters(), {.lr = kRate});
    const auto pass = [&](float factor) {
      model->zero_grad();
      model.forward(input_of(group.rank(), 0) * factor, true).backward();
    };
    EXPECT_THROW(join(
                     model, &optimizer,
                     [&] {
                       if (group.rank() == 0) return;
                       pass(1);
                       optimizer.step();
                       pass(std::numeric_limits<float>::infinity());
                     },
                     false),
                 Error);
    model->zero_grad();
    pass(1);
    at::Tensor sum = at::zeros({4});
    for (int rank = 0; rank < 2; ++rank) sum += input_of(rank, 0);
    EXPECT_TRUE(at::allclose(model.module().rare.grad(), sum / 2, 1e-4, 1e-6));
  });
}

// Afterwards the state of the optimizer is also the same on every rank.
TEST(Join, an_optimizer_with_state_is_the_same_on_all_ranks_afterwards) {
  harness::run_ranks_ok(3, [&](ProcessGroup& group) {
    DistributedDataParallel model(std::make_shared<Line>(), borrowed(group));
    optim::Adam optimizer(model->parameters(), {.lr = 0.01});
    join(model, &optimizer, [&] {
      train_with_inputs(model, 2 + group.rank(), group.rank(), [&] {
        optimizer.step();
        optimizer.zero_grad();
      });
    });
    for (const auto& [name, tensor] : optimizer.state()) {
      const at::Tensor other = tensor.clone();
      broadcast(group, other, 0);
      EXPECT_TRUE(at::equal(other, tensor)) << name;
    }
  });
}

TEST(Join, without_an_optimizer_the_model_is_that_of_who_had_inputs_last) {
  const std::vector<int> num_inputs = {1, 4, 2};
  const auto [weight, rare] = expected(num_inputs, true);
  harness::run_ranks_ok(3, [&](ProcessGroup& group) {
    DistributedDataParallel model(std::make_shared<Line>(), borrowed(group));
    torch::optim::SGD optimizer(model->parameters(), kRate);
    join(model, nullptr, [&] {
      train_with_inputs(model, num_inputs[static_cast<std::size_t>(group.rank())], group.rank(),
                        [&] {
                          optimizer.step();
                          optimizer.zero_grad();
                        });
    });
    EXPECT_TRUE(at::allclose(model.module().weight, weight, 1e-4, 1e-6));
    EXPECT_TRUE(at::allclose(model.module().rare, rare, 1e-4, 1e-6));
  });
}

TEST(Join, an_optimizer_of_libtorchs_is_taken_as_pytorchs_join_takes_it) {
  const std::vector<int> num_inputs = {1, 4, 2};
  const auto [weight, rare] = expected(num_inputs, true);
  harness::run_ranks_ok(3, [&](ProcessGroup& group) {
    DistributedDataParallel model(std::make_shared<Line>(), borrowed(group));
    torch::optim::SGD optimizer(model->parameters(), kRate);
    join(model, &optimizer, [&] {
      train_with_inputs(model, num_inputs[static_cast<std::size_t>(group.rank())], group.rank(),
                        [&] {
                          optimizer.step();
                          optimizer.zero_grad();
                        });
    });
    EXPECT_TRUE(at::allclose(model.module().weight, weight, 1e-4, 1e-6));
    EXPECT_TRUE(at::allclose(model.module().rare, rare, 1e-4, 1e-6));
  });
}

// The error mentions join() to users who do not know it.
TEST(Join, a_rank_that_runs_out_of_batches_points_to_join) {
  const auto results = harness::run_ranks(2, [](ProcessGroup& group) {
    DistributedDataParallel model(std::make_shared<Line>(), borrowed(group));
    torch::optim::SGD optimizer(model->parameters(), kRate);
    train_with_inputs(model, group.rank() == 0 ? 3 : 1, group.rank(), [&] {
      optimizer.step();
      optimizer.zero_grad();
    });
  });
  EXPECT_FALSE(results[1].error.has_value());
  ASSERT_TRUE(results[0].error.has_value());
  EXPECT_EQ(results[0].error->ranks(), std::vector{1});
  EXPECT_THAT(results[0].error->what(), Says("module.fewer_batches"));
}

// The loop clips before the optimizer's step and updates a schedule and an average of the weights
// after it. Ranks without inputs do all of this and get the same results.
TEST(Join, a_step_of_the_loop_s_own_is_taken_by_ranks_without_inputs_too) {
  const std::vector<int> num_inputs = {2, 5, 3};
  constexpr double kMaxNorm = 0.3;
  // The result of one process.
  Line line;
  optim::SGD alone(line.parameters(), {.lr = kRate});
  optim::StepLR alone_schedule(alone, 2);
  for (int step = 0; step < 5; ++step) {
    for (auto& parameter : line.parameters()) parameter.mutable_grad() = at::zeros({4});
    for (int rank = 0; rank < 3; ++rank) {
      if (step < num_inputs[static_cast<std::size_t>(rank)])
        (line.forward(input_of(rank, step), true) / 3).backward();
    }
    optim::clip_grad_norm(line.parameters(), kMaxNorm);
    alone.step();
    alone_schedule.step();
  }
  for (const bool sharded : {false, true}) {
    harness::run_ranks_ok(3, [&](ProcessGroup& group) {
      DistributedDataParallel model(std::make_shared<Line>(), borrowed(group));
      optim::SGD optimizer(model->parameters(), {.lr = kRate});
      if (sharded) core_of(optimizer).shard(borrowed(group));
      optim::StepLR schedule(optimizer, 2);
      optim::ExponentialMovingAverage average(optimizer.parameters(), 0.5);
      int num_steps = 0;
      JoinedStep step([&] {
        optim::clip_grad_norm(model->parameters(), kMaxNorm);
        optimizer.step();
        schedule.step();
        average.update();
        optimizer.zero_grad();
        // Collective: every rank takes part.
        EXPECT_EQ(all_reduce_value(group, ++num_steps, ReduceOp::kMin), num_steps);
      });
      join(model, step, [&] {
        for (int i = 0; i < num_inputs[static_cast<std::size_t>(group.rank())]; ++i) {
          model.forward(input_of(group.rank(), i), true).backward();
          step();
        }
      });
      EXPECT_TRUE(at::allclose(model.module().weight, line.weight, 1e-4, 1e-6)) << sharded;
      EXPECT_EQ(schedule.num_steps(), 5);
      EXPECT_EQ(optimizer.learning_rate(), alone.learning_rate());
      for (const auto& [name, tensor] : average.state()) {
        const at::Tensor other = tensor.clone();
        broadcast(group, other, 0);
        EXPECT_TRUE(at::equal(other, tensor)) << name;
      }
      step();  // outside of join() it is an ordinary call
      EXPECT_EQ(schedule.num_steps(), 6);
    });
  }
}

// Two passes per step, the first under no_sync(): the other ranks need not do anything for that
// one.
TEST(Join, passes_that_only_accumulate_ask_nothing_of_the_others) {
  harness::run_ranks_ok(2, [&](ProcessGroup& group) {
    DistributedDataParallel model(std::make_shared<Line>(), borrowed(group));
    optim::SGD optimizer(model->parameters(), {.lr = kRate});
    join(model, &optimizer, [&] {
      for (int step = 0; step < 2 + 2 * group.rank(); ++step) {
        {
          const auto paused = model.no_sync();
          model.forward(input_of(group.rank(), step), true).backward();
        }
        model.forward(input_of(group.rank(), step), true).backward();
        optimizer.step();
        optimizer.zero_grad();
      }
    });
    const at::Tensor other = model.module().weight.detach().clone();
    broadcast(group, other, 0);
    EXPECT_TRUE(at::equal(other, model.module().weight));
    EXPECT_FALSE(at::equal(other, at::full({4}, 0.5)));
  });
}

void expect_all_refused(int world, const std::function<void(ProcessGroup&)>& body,
                        const std::string& text) {
  for (const auto& result : harness::run_ranks(world, body)) {
    ASSERT_TRUE(result.error);
    EXPECT_EQ(result.error->code(), ErrorCode::kInvalid);
    EXPECT_THAT(result.error->what(), HasSubstr(text));
  }
}

TEST(Join, the_end_of_inputs_may_be_an_error_on_every_rank) {
  expect_all_refused(
      3,
      [](ProcessGroup& group) {
        DistributedDataParallel model(std::make_shared<Line>(), borrowed(group));
        join(
            model, nullptr,
            [&] { train_with_inputs(model, group.rank() == 1 ? 2 : 3, group.rank(), [] {}); }, true,
            true);
      },
      "the inputs of rank 1 have ended, and other ranks have more (throw_on_early_termination)");
}

TEST(Join, ranks_that_do_different_things_with_their_inputs_are_told_which) {
  expect_all_refused(
      2,
      [](ProcessGroup& group) {
        DistributedDataParallel model(std::make_shared<Line>(), borrowed(group));
        optim::SGD optimizer(model->parameters(), {.lr = kRate});
        join(model, &optimizer, [&] {
          train_with_inputs(model, 2, group.rank(), [&] {
            if (group.rank() == 0) optimizer.step();
          });
        });
      },
      "rank 0 takes a step, but rank 1 is in a forward pass that averages");
}

TEST(Join, does_not_go_with_logical_shards) {
  expect_all_refused(
      2,
      [](ProcessGroup& group) {
        DistributedDataParallelOptions options;
        options.logical_shards = 2;
        DistributedDataParallel model(std::make_shared<Line>(), borrowed(group), options);
        join(model, nullptr, [] {});
      },
      "with logical shards every rank has the same number of passes");
}

// A rank whose inputs have ended also gets the error.
TEST(JoinProcesses, a_rank_that_dies_is_named_by_all_others) {
  const auto results = harness::run_process_ranks(3, [](ProcessGroup& group) -> std::string {
    DistributedDataParallel model(std::make_shared<Line>(), borrowed(group));
    optim::SGD optimizer(model->parameters(), {.lr = kRate});
    join(model, &optimizer, [&] {
      for (int step = 0; step < 3 * group.rank(); ++step) {
        if (group.rank() == 2 && step == 4) ::kill(::getpid(), SIGKILL);
        model.forward(input_of(group.rank(), step), true).backward();
        optimizer.step();
        optimizer.zero_grad();
      }
    });
    return "no error";
  });
  EXPECT_EQ(results[2].signal, SIGKILL);
  for (const int rank : {0, 1}) {
    EXPECT_EQ(results[static_cast<std::size_t>(rank)].code, ErrorCode::kPeerLost);
    EXPECT_EQ(results[static_cast<std::size_t>(rank)].context.ranks, std::vector{2});
  }
}

}  // namespace
}  // namespace paceline
