#include "paceline/training/train/loop.h"

#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "paceline/engine/telemetry/timeline.h"
#include "paceline/training/data/dataset.h"
#include "paceline/training/optim/grad_scaler.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/parallel/fully_shard.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/train/evaluate.h"
#include "paceline/training/train/run_report.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/says.h"
#include "tests/harness/thread_ranks.h"
#include "tests/training/train/small_run.h"

namespace paceline::train {
namespace {

using harness::run_ranks_ok;
using harness::Says;

std::shared_ptr<ProcessGroup> borrow(ProcessGroup& group) {
  return {&group, [](auto*) {}};
}

TEST(Loop, visits_every_sample_and_counts_steps_epochs_and_samples) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    SmallRun run(borrow(group));
    std::int64_t samples = 0;
    std::int64_t epochs = 0;
    LoopHooks hooks;
    hooks.after_step = [&](const StepReport& report) {
      samples += report.samples;
      EXPECT_TRUE(std::isfinite(report.loss));
    };
    hooks.after_epoch = [&](const TrainingState& state) {
      epochs = state.epoch;
      return Next::kContinue;
    };
    run.train({.epochs = 3}, hooks);
    EXPECT_EQ(samples, 75);  // half of 50 samples, three times
    EXPECT_EQ(epochs, 3);
    EXPECT_EQ(run.state, (TrainingState{.epoch = 3, .step = 15, .consumed = 0, .seed = 3}));
    EXPECT_GT(run.times.seconds(Phase::kForward), 0);
    EXPECT_GT(run.times.seconds(Phase::kBackward), 0);
  });
}

// One host is late in every forward pass, and the other waits there for its parameters. The wait
// counts as communication, and no phase may have a negative time.
TEST(Loop, waiting_for_parameters_of_other_hosts_is_communication) {
  const auto body = [](ProcessGroup& group) {
    const auto net = SmallRun::make_model(group);
    optim::Adam optimizer(net->parameters(), {.lr = 1e-2});
    auto model = fully_shard(net, borrow(group), optimizer, {.shard_across_hosts = true});
    BackwardPasses gradients(
        [&](const data::Batch& batch) {
          if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
          return torch::nn::functional::cross_entropy(model.forward(batch.data), batch.target);
        },
        model.reducer());
    data::DataLoader loader(
        std::make_shared<data::ImageSamples>(small_dataset(), data::ImageSamplesOptions{.seed = 3}),
        data::DistributedSampler(50, 2, group.rank(), {}), {.batch_size = 5});
    PhaseTimes times;
    TrainingState state;
    run_loop({.epochs = 1}, state, loader, gradients, optimizer, times, {});
    for (const Phase phase : {Phase::kForward, Phase::kBackward, Phase::kOptimizer})
      EXPECT_GE(times.seconds(phase), 0) << "rank " << group.rank() << ": " << name_of(phase);
    EXPECT_GT(times.seconds(Phase::kCommunication), 0);
  };
  run_ranks_ok(2, body, {.adjust = [](int rank, GroupOptions& group) {
                 group.link.host = "h" + std::to_string(rank);
               }});
}

TEST(Loop, ends_at_the_step_limit_and_goes_on_from_there) {
  run_ranks_ok(1, [](ProcessGroup& group) {
    SmallRun run(borrow(group));
    run.train({.epochs = 2, .max_steps = 7});
    EXPECT_EQ(run.state, (TrainingState{.epoch = 0, .step = 7, .consumed = 35, .seed = 3}));
    run.train({.epochs = 2, .max_steps = 10});
    EXPECT_EQ(run.state, (TrainingState{.epoch = 1, .step = 10, .consumed = 0, .seed = 3}));
  });
}

TEST(Loop, the_loss_of_a_step_is_the_mean_over_the_samples_of_all_ranks_on_every_rank) {
  for (const int world : {1, 2, 3, 4}) {
    run_ranks_ok(world, [&](ProcessGroup& group) {
      SmallRun run(borrow(group));
      run.model->eval();  // without dropout
      double own = 0;     // sum over this rank's samples
      std::int64_t num_steps = 0;
      BackwardPasses gradients(
          [&](const data::Batch& batch) {
            const auto loss =
                torch::nn::functional::cross_entropy(run.model.forward(batch.data), batch.target);
            own += loss.item<double>() * static_cast<double>(batch.data.size(0));
            return loss;
          },
          run.model.reducer());
      LoopHooks hooks;
      hooks.after_step = [&](const StepReport& report) {
        std::vector<double> sums = {own, static_cast<double>(report.samples)};
        group.all_reduce(std::span(sums));
        EXPECT_NEAR(report.loss, sums[0] / sums[1], 1e-6) << world << " ranks";
        own = 0;
        ++num_steps;
      };
      run_loop({.epochs = 1}, run.state, run.loader, gradients, run.optimizer, run.times, hooks);
      EXPECT_GT(num_steps, 0);
    });
  }
}

TEST(Loop, replicas_stay_equal) {
  run_ranks_ok(3, [](ProcessGroup& group) {
    SmallRun run(borrow(group));
    run.train({.epochs = 2});
    at::Tensor parameters = at::cat({run.model.module().conv->weight.detach().flatten(),
                                     run.model.module().head->weight.detach().flatten()});
    for (const auto& other : all_gather(group, parameters))
      EXPECT_TRUE(at::equal(other, parameters));
  });
}

// Gradients that are scaled by a power of two and divided by it again have the same bits, and so
// has the reported loss. An overflow in one rank's loss skips the step on all ranks.
TEST(Loop, takes_the_step_that_its_hooks_take_with_the_loss_that_they_scale) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    SmallRun plain(borrow(group)), scaled(borrow(group));
    std::vector<double> losses, scaled_losses;
    LoopHooks hooks;
    hooks.after_step = [&](const StepReport& report) { losses.push_back(report.loss); };
    for (auto* run : {&plain, &scaled}) run->model.eval();  // without dropout
    plain.train({.max_steps = 4}, hooks);
    optim::GradScaler scaler({.init_scale = 1024});
    int num_taken = 0;
    hooks.after_step = [&](const StepReport& report) { scaled_losses.push_back(report.loss); };
    hooks.scale_loss = [&](const at::Tensor& loss) { return scaler.scale(loss); };
    hooks.take_step = [&] {
      num_taken += scaler.step(scaled.optimizer) ? 1 : 0;
      scaler.update();
    };
    scaled.train({.max_steps = 4}, hooks);
    EXPECT_EQ(num_taken, 4);
    EXPECT_EQ(scaled_losses, losses);
    EXPECT_TRUE(at::equal(scaled.flat(), plain.flat()));

    const at::Tensor before = scaled.flat();
    hooks.scale_loss = [&](const at::Tensor& loss) {
      return scaler.scale(loss) * (group.rank() == 1 ? INFINITY : 1.0);
    };
    scaled.train({.max_steps = 5}, hooks);
    EXPECT_EQ(num_taken, 4);
    EXPECT_EQ(scaler.loss_scale(), 512);
    EXPECT_TRUE(at::equal(scaled.flat(), before));
  });
}

TEST(Evaluate, counts_every_sample_once_for_any_number_of_ranks) {
  for (const int world : {1, 2, 3, 4}) {
    run_ranks_ok(world, [&](ProcessGroup& group) {
      const auto dataset = small_dataset(11);
      data::DataLoader loader(std::make_shared<data::ImageSamples>(dataset),
                              data::evaluation_indices(11, world, group.rank()), {.batch_size = 2});
      // A model that always chooses class 0.
      const auto result = evaluate(group, loader, [](const at::Tensor& images) {
        auto logits = at::zeros({images.size(0), 3});
        logits.select(1, 0).fill_(10.0f);
        return logits;
      });
      EXPECT_EQ(result.samples, 11);
      EXPECT_DOUBLE_EQ(result.accuracy, dataset.labels.eq(0).sum().item<double>() / 11);
      EXPECT_DOUBLE_EQ(result.top5_accuracy, 1);  // there are only three classes
    });
  }
}

// A rank without samples runs no forward pass. With BatchNorm the other ranks' passes need buffers
// that are the same on all ranks.
TEST(Evaluate, takes_any_number_of_samples_on_any_number_of_ranks_between_steps) {
  for (const int world : {1, 2, 3, 4}) {
    for (const std::int64_t samples : {1, 2, 3, 5}) {
      SCOPED_TRACE(testing::Message() << samples << " samples on " << world << " ranks");
      run_ranks_ok(world, [&](ProcessGroup& group) {
        SmallRun run(borrow(group));
        const auto dataset = std::make_shared<data::ImageSamples>(small_dataset(samples));
        data::DataLoader own(dataset, data::evaluation_indices(samples, world, group.rank()), {});
        data::DataLoader all(dataset, data::evaluation_indices(samples, 1, 0), {});
        for (const std::int64_t steps : {1, 2, 3}) {
          run.train({.epochs = 2, .max_steps = steps});
          run.model->eval();
          const auto forward = [&](const at::Tensor& images) { return run.model(images); };
          const auto found = evaluate(group, own, forward);
          EXPECT_EQ(found.samples, samples);
          const at::NoGradGuard no_grad;
          auto running = all.epoch(0);
          const auto whole = running.next();
          const auto wanted = torch::nn::functional::cross_entropy(
              run.model.module().forward(whole->data), whole->target);
          EXPECT_NEAR(found.loss, wanted.item<double>(), 1e-5);
          run.model->train();
        }
      });
    }
  }
}

TEST(Loop, trains_with_fewer_samples_than_ranks) {
  for (const int world : {2, 3, 4}) {
    for (const std::int64_t samples : {1, 2, 3, 5}) {
      for (const std::int64_t global : {0, 4}) {
        SCOPED_TRACE(testing::Message()
                     << samples << " samples on " << world << " ranks, global batch " << global);
        run_ranks_ok(world, [&](ProcessGroup& group) {
          SmallRun run(borrow(group));
          data::DataLoader loader(
              std::make_shared<data::ImageSamples>(small_dataset(samples)),
              data::DistributedSampler(samples, world, group.rank(), {.seed = 3}),
              {.batch_size = 2, .global_batch_size = global});
          BackwardPasses gradients(
              [&](const data::Batch& batch) {
                return torch::nn::functional::cross_entropy(run.model(batch.data), batch.target);
              },
              run.model.reducer());
          std::vector<double> losses;
          run_loop({.epochs = 2}, run.state, loader, gradients, run.optimizer, run.times,
                   {.after_step = [&](const auto& report) { losses.push_back(report.loss); }});
          EXPECT_GE(losses.size(), 2U);
          for (const double loss : losses) EXPECT_TRUE(std::isfinite(loss));
          const at::Tensor own = run.flat();
          for (const auto& other : all_gather(group, own)) EXPECT_TRUE(at::equal(other, own));
        });
      }
    }
  }
}

// For vectors, one sample has only one value of each channel.
TEST(Loop, a_last_batch_of_one_sample_that_cannot_be_normalised_says_what_to_do) {
  struct Net : torch::nn::Module {
    at::Tensor forward(const at::Tensor& rows) { return norm(layer(rows)); }
    torch::nn::Linear layer = register_module("layer", torch::nn::Linear(4, 3));
    torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(3));
  };
  const auto dataset = std::make_shared<data::TensorDataset>(
      "rows", std::vector<at::Tensor>{at::ones({7, 4}), at::zeros({7}, at::kLong)});
  const auto train = [&](ProcessGroup& group, bool drop_last) {
    DistributedDataParallel<Net> model(std::make_shared<Net>(), borrow(group));
    optim::SGD optimizer(model->parameters(), {.lr = 0.1});
    data::DataLoader loader(dataset, data::DistributedSampler(7, 1, 0),
                            {.batch_size = 3, .drop_last = drop_last});
    BackwardPasses gradients(
        [&](const data::Batch& batch) {
          return torch::nn::functional::cross_entropy(model(batch.data), batch.target);
        },
        model.reducer());
    TrainingState state;
    PhaseTimes times;
    run_loop({.epochs = 2}, state, loader, gradients, optimizer, times, {});
    return state.step;
  };
  run_ranks_ok(1, [&](ProcessGroup& group) {
    EXPECT_EQ(train(group, true), 4);
    expect_error(ErrorCode::kInvalid,
                 {"rank 0", "a batch of 1 sample", "drop_last", "--drop-last", "batch size"},
                 [&] { train(group, false); });
  });
}

TEST(Evaluate, nothing_to_evaluate_is_an_error_on_every_rank) {
  for (const auto& result : harness::run_ranks(2, [](ProcessGroup& group) {
         data::DataLoader loader(std::make_shared<data::ImageSamples>(small_dataset(4)),
                                 std::vector<std::int64_t>{}, {.batch_size = 2});
         evaluate(group, loader, [](const at::Tensor& images) { return images; });
       })) {
    ASSERT_TRUE(result.error);
    EXPECT_THAT(result.error->what(), Says("evaluate.no_sample"));
  }
}

TEST(RunReport, adds_up_over_ranks_and_names_the_slowest) {
  run_ranks_ok(3, [](ProcessGroup& group) {
    PhaseTimes times;
    times.add(Phase::kForward, 1.0 + group.rank());
    times.add(Phase::kCommunication, 100.0);
    const auto report = make_report(group, times, 10.0, 5, 120, {"tokens", 4});
    EXPECT_EQ(report.samples, 120);
    EXPECT_DOUBLE_EQ(report.samples_per_second, 12.0);
    EXPECT_DOUBLE_EQ(report.mean.seconds(Phase::kForward), 2.0);
    EXPECT_EQ(report.slowest_rank, 2);
    EXPECT_DOUBLE_EQ(report.slowest_by, 1.0);
    EXPECT_NE(report.table().find("2 (1.00 s above the mean)"), std::string::npos);
    EXPECT_NE(report.table().find("48 tokens/s"), std::string::npos);
    EXPECT_EQ(report.table().find("matrix speed"), std::string::npos);
    const auto compared = make_report(group, times, 10.0, 5, 120, {"tokens", 4, 5e6});
    EXPECT_GT(compared.matrix_speed, 0);
    EXPECT_DOUBLE_EQ(compared.matrix_share(), 12.0 * 5e6 / compared.matrix_speed);
    EXPECT_NE(compared.table().find("Gflop/s (float32 products, measured)"), std::string::npos);
  });
}

}  // namespace
}  // namespace paceline::train
