// Steps of a global batch: the training is the same with any number of ranks, even while that
// number changes.

#include <algorithm>
#include <mutex>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/train/loop.h"

#include "tests/harness/thread_ranks.h"
#include "tests/training/train/small_run.h"

namespace paceline::train {
namespace {

using ::testing::UnorderedElementsAreArray;

constexpr std::int64_t kSamples = 50;

// A model without batch statistics and dropout, which depend on how a batch is cut.
struct PlainNet : torch::nn::Module {
  PlainNet() {
    hidden = register_module("hidden", torch::nn::Linear(64, 5));
    head = register_module("head", torch::nn::Linear(5, 3));
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      parameter.copy_(
          torch::sin(torch::arange(parameter.numel(), torch::kFloat)).view_as(parameter) * 0.1);
    }
  }
  at::Tensor forward(const at::Tensor& images) {
    return head(torch::relu(hidden(images.flatten(1))));
  }
  torch::nn::Linear hidden{nullptr}, head{nullptr};
};

// The state that one generation leaves to the next.
struct Job {
  TrainingState state{.seed = 3};
  std::vector<at::Tensor> parameters;  // empty at the beginning
  std::vector<std::int64_t> seen;      // samples that counted, in any order
  double loss = 0;                     // loss of the last step
};

// Trains up to step `until` on `world_size` ranks.
void train(Job& job, int world_size, std::int64_t until, const data::DataLoaderOptions& batches) {
  std::mutex mutex;
  const Job before = job;
  harness::run_ranks_ok(world_size, [&](ProcessGroup& process_group) {
    const std::shared_ptr<ProcessGroup> group(&process_group, [](auto*) {});
    data::DataLoader loader(
        std::make_shared<data::ImageSamples>(small_dataset(kSamples)),
        data::DistributedSampler(kSamples, world_size, group->rank(), {.seed = 3}), batches);
    DistributedDataParallel<PlainNet> model(std::make_shared<PlainNet>(), group);
    for (std::size_t i = 0; i < before.parameters.size(); ++i) {
      const torch::NoGradGuard no_grad;
      model->parameters()[i].copy_(before.parameters[i]);
    }
    optim::SGD optimizer(model->parameters(), {.lr = 0.1});
    PhaseTimes times;
    TrainingState state = before.state;
    double loss = 0;
    BackwardPasses gradients(
        [&](const data::Batch& batch) {
          const std::lock_guard lock(mutex);
          if (batch.weight > 0) {
            job.seen.insert(job.seen.end(), batch.indices.begin(), batch.indices.end());
          }
          return torch::nn::functional::cross_entropy(model.forward(batch.data), batch.target);
        },
        model.reducer());
    run_loop({.epochs = 100, .max_steps = until}, state, loader, gradients, optimizer, times,
             {.after_step = [&](const StepReport& report) { loss = report.loss; }});
    const std::lock_guard lock(mutex);
    if (group->rank() != 0) return;
    job.state = state;
    job.loss = loss;
    job.parameters.clear();
    for (const auto& parameter : model->parameters()) {
      job.parameters.push_back(parameter.detach().clone());
    }
  });
}

void expect_same_training(const Job& job, const Job& reference) {
  EXPECT_EQ(job.state, reference.state);
  ASSERT_EQ(job.parameters.size(), reference.parameters.size());
  for (std::size_t i = 0; i < job.parameters.size(); ++i) {
    EXPECT_TRUE(at::allclose(job.parameters[i], reference.parameters[i], 1e-4, 1e-6));
  }
}

// 5 ranks do not divide 12 samples evenly, and each epoch ends with a step of 2 samples.
constexpr std::int64_t kGlobal = 12;
constexpr std::int64_t kSteps = 13;  // two and a half epochs

TEST(GlobalBatch, training_is_the_same_at_any_number_of_ranks) {
  Job alone;
  train(alone, 1, kSteps, {.global_batch_size = kGlobal});
  EXPECT_EQ(alone.state, (TrainingState{.epoch = 2, .step = 13, .consumed = 36, .seed = 3}));
  for (const int ranks : {1, 2, 3, 4, 5}) {
    for (const std::int64_t micro : {0, 1, 2, 3}) {
      Job job;
      train(job, ranks, kSteps, {.global_batch_size = kGlobal, .micro_batch_size = micro});
      expect_same_training(job, alone);
      EXPECT_THAT(job.seen, UnorderedElementsAreArray(alone.seen)) << ranks << " ranks";
    }
  }
}

TEST(GlobalBatch, training_goes_on_unchanged_while_the_world_shrinks_and_grows) {
  Job alone, elastic;
  train(alone, 1, kSteps, {.global_batch_size = kGlobal});
  std::int64_t until = 0;
  for (const auto& [ranks, steps] :
       std::vector<std::pair<int, std::int64_t>>{{4, 2}, {3, 1}, {1, 3}, {2, 4}, {5, 3}}) {
    until += steps;
    train(elastic, ranks, until, {.global_batch_size = kGlobal, .micro_batch_size = 4});
  }
  expect_same_training(elastic, alone);
  EXPECT_THAT(elastic.seen, UnorderedElementsAreArray(alone.seen));
}

TEST(GlobalBatch, the_loss_is_the_whole_steps_at_any_number_of_ranks) {
  Job alone;
  train(alone, 1, 1, {.global_batch_size = kGlobal});
  for (const int ranks : {1, 2, 5}) {
    for (const std::int64_t micro : {0, 5}) {
      Job job;
      train(job, ranks, 1, {.global_batch_size = kGlobal, .micro_batch_size = micro});
      EXPECT_NEAR(job.loss, alone.loss, 1e-5) << ranks << " ranks";
    }
  }
}

}  // namespace
}  // namespace paceline::train
