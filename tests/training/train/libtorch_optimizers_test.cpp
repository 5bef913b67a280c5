// The optimizers of torch::optim in checkpoints and in a TrainingRun: a run that was stopped in the
// middle of an epoch and continued ends with the bits of one that was not interrupted, with a
// learning rate that a schedule changes.

#include <csignal>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/training/train/checkpoints/checkpointer.h"
#include "paceline/training/train/training_run.h"

#include "tests/harness/borrowed_group.h"
#include "tests/harness/expect_error.h"
#include "tests/harness/fresh_directory.h"
#include "tests/harness/process_ranks.h"
#include "tests/training/train/small_run.h"

namespace paceline::train {
namespace {

using harness::borrowed;
using ::testing::HasSubstr;

using Made = std::unique_ptr<torch::optim::Optimizer>;

Made make(const std::string& name, const std::vector<at::Tensor>& parameters) {
  using namespace torch::optim;
  if (name == "SGD")
    return std::make_unique<SGD>(parameters, SGDOptions(0.05).momentum(0.9).nesterov(true));
  if (name == "Adam") return std::make_unique<Adam>(parameters, AdamOptions(0.01).amsgrad(true));
  if (name == "AdamW") return std::make_unique<AdamW>(parameters, AdamWOptions(0.01));
  if (name == "Adagrad") return std::make_unique<Adagrad>(parameters, AdagradOptions(0.02));
  if (name == "RMSprop")
    return std::make_unique<RMSprop>(parameters,
                                     RMSpropOptions(0.005).momentum(0.5).centered(true));
  return std::make_unique<LBFGS>(parameters, LBFGSOptions(0.1).max_iter(3).history_size(4));
}

std::string bits_of(torch::nn::Module& module) {
  std::vector<at::Tensor> all;
  for (const auto& parameter : module.parameters()) all.push_back(parameter.detach().flatten());
  for (const auto& buffer : module.buffers()) all.push_back(buffer.flatten().to(at::kFloat));
  const at::Tensor flat = at::cat(all);
  const std::string_view bytes(static_cast<const char*>(flat.data_ptr()), flat.nbytes());
  return fmt::format("{:x}", std::hash<std::string_view>()(bytes));
}

// The data and the model of a rank.
struct Rank {
  explicit Rank(ProcessGroup& of) : group(borrowed(of)), model(SmallRun::make_model(of), group) {}

  std::unique_ptr<data::DataLoader> loader(std::uint64_t seed) const {
    return std::make_unique<data::DataLoader>(
        std::make_shared<data::ImageSamples>(
            small_dataset(),
            data::ImageSamplesOptions{.crop_padding = 1, .random_flip = true, .seed = 3}),
        data::DistributedSampler(50, group->world_size(), group->rank(), {.seed = seed}),
        data::DataLoaderOptions{.global_batch_size = 10});
  }
  at::Tensor loss(const data::Batch& batch) {
    return torch::nn::functional::cross_entropy(model(batch.data), batch.target);
  }

  std::shared_ptr<ProcessGroup> group;
  DistributedDataParallel<SmallNet> model;
};

class LibTorchRunTest : public testing::Test {
 protected:
  // The ranks are forked, which LibTorch's threads would not survive.
  LibTorchRunTest() { at::set_num_threads(1); }

  // Runs `body` on two ranks and returns their reports.
  static std::string on_ranks(const std::function<std::string(ProcessGroup& group)>& body) {
    std::string reports;
    for (const auto& result : harness::run_process_ranks(2, body)) {
      EXPECT_EQ(result.exit_code, 0) << result.report;
      reports += result.report + "|";
    }
    return reports;
  }

  const FreshDirectory folder_;
};
class LibTorchOptimizersTest : public LibTorchRunTest,
                               public testing::WithParamInterface<const char*> {};

// A loop of the program's own. Saves after step `save_at` and ends after step `end_at`.
std::string own_loop(ProcessGroup& group, const std::string& name, const std::string& folder,
                     bool resume, std::int64_t save_at, std::int64_t end_at) {
  Rank rank(group);
  const auto loader = rank.loader(3);
  const Made optimizer = make(name, rank.model->parameters());
  torch::optim::StepLR schedule(*optimizer, 4, 0.7);
  Checkpointer checkpointer(rank.group, {.folder = folder, .resume = resume});
  checkpointer.attach("model", rank.model);
  checkpointer.attach("optimizer", *optimizer);
  checkpointer.attach("schedule", schedule);
  checkpointer.attach("data", *loader);
  std::int64_t step = checkpointer.begin(3);
  for (std::int64_t epoch = loader->position().epoch; epoch < 3; ++epoch) {
    for (const data::Batch& batch : loader->epoch(epoch)) {
      optimizer->step([&] {
        optimizer->zero_grad();
        const at::Tensor loss = batch.weighted(rank.loss(batch));
        loss.backward();
        return at::tensor(all_reduce_value(group, loss.item<double>()));  // LBFGS compares it
      });
      schedule.step();
      if (++step == save_at) {
        EXPECT_TRUE(checkpointer.save(step));
      }
      if (step == end_at) {
        EXPECT_TRUE(checkpointer.finish());
        return {};
      }
    }
  }
  return bits_of(rank.model.module()) +
         fmt::format(" {}", optimizer->param_groups()[0].options().get_lr());
}

TEST_P(LibTorchOptimizersTest, a_resumed_loop_has_the_bits_of_one_that_was_not_interrupted) {
  const auto loop = [&](const char* folder, bool resume, std::int64_t save_at,
                        std::int64_t end_at) {
    return on_ranks([&](ProcessGroup& group) {
      return own_loop(group, GetParam(), folder_.file(folder), resume, save_at, end_at);
    });
  };
  const std::string straight = loop("straight", false, -1, -1);
  loop("run", false, 7, 9);  // step 7 is in the middle of the second epoch
  EXPECT_EQ(loop("run", true, -1, -1), straight);
}

// LibTorch's own archive has addresses of tensors in it, so `paceline checkpoint diff` would find
// differences between two runs that are alike.
TEST_P(LibTorchOptimizersTest, equal_states_have_equal_bytes) {
  const auto bytes_after = [&](int steps, std::vector<std::unique_ptr<at::Tensor>>& unrelated) {
    std::vector<at::Tensor> parameters;
    for (int i = 0; i < 12; ++i) {
      unrelated.push_back(std::make_unique<at::Tensor>(at::ones({i + 1})));
      parameters.push_back(torch::ones({3}, torch::requires_grad()));
    }
    const Made optimizer = make(GetParam(), parameters);
    for (int i = 0; i < steps; ++i) {
      optimizer->step([&] {
        optimizer->zero_grad();
        const at::Tensor loss = at::stack(parameters).pow(2).sum();
        loss.backward();
        return loss.detach();
      });
    }
    return state_of("optimizer", *optimizer).save();
  };
  std::vector<std::unique_ptr<at::Tensor>> unrelated;
  const std::string first = bytes_after(2, unrelated);
  EXPECT_TRUE(first == bytes_after(2, unrelated));
  EXPECT_FALSE(first == bytes_after(3, unrelated));
}

// Ends after `stop_after` steps, or with the last epoch.
std::string training_run(ProcessGroup& group, const std::string& name, const std::string& folder,
                         bool resume, std::int64_t stop_after) {
  Rank rank(group);
  const Made optimizer = make(name, rank.model->parameters());
  std::int64_t steps = 0;
  const Training training{
      .module = rank.model.module(),
      .optimizer = *optimizer,
      .gradients =
          backward_passes([&](const data::Batch& batch) { return rank.loss(batch); }, rank.model),
      .make_loader = [&](std::uint64_t seed) { return rank.loader(seed); },
      .test = [] { return TestResult{.loss = 1, .summary = "made up"}; },
      .after_step =
          [&] {
            if (++steps == stop_after && group.rank() == 0) std::raise(SIGUSR1);
          }};
  TrainingRun run(rank.group, training,
                  {.epochs = 3,
                   .seed = 3,
                   .step = {.schedule = "cosine", .clip_norm = 0.5, .ema = 0.9},
                   .checkpoints = {.folder = folder, .resume = resume}});
  EXPECT_EQ(run.train(), stop_after > 0 ? kStoppedAsAgreed : 0);
  if (stop_after > 0) {
    EXPECT_EQ(run.state().step, stop_after);
    return {};
  }
  return fmt::format("{} step {}", bits_of(rank.model.module()), run.state().step);
}

TEST_P(LibTorchOptimizersTest, a_stopped_training_run_goes_on_with_the_same_bits) {
  if (GetParam() == std::string("LBFGS")) {
    for (const auto& result : harness::run_process_ranks(2, [&](ProcessGroup& group) {
           return training_run(group, "LBFGS", folder_.path(), false, 0);
         })) {
      EXPECT_TRUE(result.threw);
      EXPECT_EQ(result.code, ErrorCode::kUnsupported);
      EXPECT_THAT(result.report, HasSubstr("torch::optim::LBFGS computes the loss several times"));
      EXPECT_THAT(result.report, HasSubstr("write a loop of your own"));
    }
    return;
  }
  const auto run = [&](const char* run_folder, bool resume, std::int64_t stop_after) {
    return on_ranks([&](ProcessGroup& group) {
      return training_run(group, GetParam(), folder_.file(run_folder), resume, stop_after);
    });
  };
  const std::string straight = run("straight", false, 0);
  EXPECT_THAT(straight, HasSubstr("step 15"));
  run("run", false, 7);
  EXPECT_EQ(run("run", true, 0), straight);
}

INSTANTIATE_TEST_SUITE_P(All, LibTorchOptimizersTest,
                         testing::Values("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "LBFGS"),
                         [](const auto& info) { return std::string(info.param); });

// A TrainingRun with an optimizer of torch::optim computes what a loop of the program's own does.
TEST_F(LibTorchRunTest, a_training_run_takes_the_steps_of_the_optimizer) {
  const std::string reports = on_ranks([](ProcessGroup& group) {
    const auto train = [&](bool by_run) {
      torch::manual_seed(5);
      Rank rank(group);
      torch::optim::SGD sgd(rank.model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
      if (by_run) {
        TrainingRun run(
            rank.group,
            {.module = rank.model.module(),
             .optimizer = sgd,
             .gradients = backward_passes(
                 [&](const data::Batch& batch) { return rank.loss(batch); }, rank.model),
             .make_loader = [&](std::uint64_t seed) { return rank.loader(seed); },
             .test = [] { return TestResult{.loss = 1, .summary = "made up"}; }},
            {.epochs = 2, .seed = 3});
        EXPECT_EQ(run.train(), 0);
      } else {
        const auto loader = rank.loader(3);
        for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
          for (const data::Batch& batch : loader->epoch(epoch)) {
            sgd.zero_grad();
            batch.weighted(rank.loss(batch)).backward();
            sgd.step();
          }
        }
      }
      return bits_of(rank.model.module());
    };
    EXPECT_EQ(train(true), train(false));
    return std::string("same");
  });
  EXPECT_EQ(reports, "same|same|");
}

// Two ranks with a part of a model each: what cannot be saved is refused before the first step.
TEST_F(LibTorchRunTest, a_divided_model_is_refused_when_the_run_begins) {
  const std::string reports = on_ranks([&](ProcessGroup& group) {
    const auto part = std::make_shared<torch::nn::LinearImpl>(3, 2 + group.rank());
    torch::optim::SGD sgd(part->parameters(), 0.1);
    Checkpointer as_replicas(borrowed(group), {.folder = folder_.file("replicas")});
    as_replicas.attach("model", part);
    expect_error(ErrorCode::kInvalid, {"rank 1 has other parameters", "Pipeline", "replicas"},
                 [&] { as_replicas.begin(); });
    Checkpointer as_parts(borrowed(group), {.folder = folder_.file("parts"),
                                            .replicas = group.split(group.rank(), 0)});
    as_parts.attach("model", part);
    expect_error(ErrorCode::kUnsupported, {"\"optimizer\"", "use one of paceline::optim"},
                 [&] { as_parts.attach("optimizer", sgd); });
    const auto alike = std::make_shared<torch::nn::LinearImpl>(2, 2);
    torch::nn::init::constant_(alike->weight, group.rank());
    Checkpointer with_one_name(borrowed(group), {.folder = folder_.file("names"),
                                                 .replicas = group.split(group.rank(), 0)});
    with_one_name.attach("model", alike);
    with_one_name.begin();
    expect_error(ErrorCode::kInvalid, {"ranks 0 and 1 have different parameters named weight"},
                 [&] { with_one_name.save(1); });
    group.barrier();
    return std::string("refused");
  });
  EXPECT_EQ(reports, "refused|refused|");
}

}  // namespace
}  // namespace paceline::train
