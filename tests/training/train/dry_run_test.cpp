#include "paceline/training/train/dry_run.h"

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/training/models/layers.h"
#include "paceline/training/train/training_run.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/fresh_directory.h"
#include "tests/harness/thread_ranks.h"
#include "tests/training/train/small_run.h"

namespace paceline::train {
namespace {

constexpr std::int64_t kParameters = 4 * 9 + 4 + 8 + 3 * 256 + 3;  // parameters of SmallNet

void alone(const std::function<void(std::shared_ptr<ProcessGroup>)>& body) {
  harness::run_ranks_ok(1, [&](ProcessGroup& group) { body({&group, [](auto*) {}}); });
}

class Profiled : public testing::Test {
 protected:
  void SetUp() override { setenv("PACELINE_PROFILE", file_.c_str(), 1); }
  void TearDown() override { unsetenv("PACELINE_PROFILE"); }

  planning::JobProfile profile_of(
      const std::function<void(planning::JobProfile&, std::int64_t)>& describe = nullptr) {
    alone([&](const std::shared_ptr<ProcessGroup>& group) {
      SmallRun run(group);
      TrainingRun training(group,
                           {.module = run.model.module(),
                            .optimizer = run.optimizer,
                            .gradients = backward_passes(
                                [&](const data::Batch& batch) {
                                  return torch::nn::functional::cross_entropy(
                                      run.model.forward(batch.data), batch.target);
                                },
                                run.model),
                            .data = "made up",
                            .make_loader =
                                [](std::uint64_t seed) {
                                  return std::make_unique<data::DataLoader>(
                                      std::make_shared<data::ImageSamples>(small_dataset()),
                                      data::DistributedSampler(50, 1, 0, {.seed = seed}),
                                      data::DataLoaderOptions{.batch_size = 8});
                                },
                            .test =
                                [] {
                                  ADD_FAILURE() << "evaluated";
                                  return TestResult{};
                                },
                            .describe = describe},
                           {.epochs = 2});
      EXPECT_EQ(training.train(), 0);
      EXPECT_EQ(training.state().step, 0);
    });
    return planning::load_profile(file_);
  }

  const FreshDirectory folder_;
  const std::string file_ = folder_.file("profile.json");
};

TEST_F(Profiled, a_run_writes_a_profile_in_the_place_of_training) {
  const planning::JobProfile profile = profile_of();
  EXPECT_EQ(profile.parameters(), kParameters);
  EXPECT_EQ(profile.samples_per_step, 8);
  EXPECT_EQ(profile.ranks_at_once, 1);
  EXPECT_GE(profile.optimizer_bytes, 8);  // Adam's two moments, in whole blocks
  EXPECT_LT(profile.optimizer_bytes, 10);
  ASSERT_EQ(profile.layers.size(), 1U);
  const planning::LayerProfile& model = profile.layers.front();
  EXPECT_GT(model.forward.of(8), 0);
  EXPECT_GT(model.backward.of(8), 0);
  // At least the outputs of the convolution and of the norm, 4 x 8 x 8 float32 each.
  EXPECT_GE(model.activation_bytes, 2 * 4 * 8 * 8 * 4);
  EXPECT_LT(model.activation_bytes, 20 * 4 * 8 * 8 * 4);
  EXPECT_GT(profile.process_bytes, 0);
  EXPECT_GT(profile.library_bytes, 0);
}

TEST_F(Profiled, layers_take_together_what_the_model_takes) {
  const planning::JobProfile whole = profile_of();
  const planning::JobProfile layered =
      profile_of([](planning::JobProfile& profile, std::int64_t samples) {
        EXPECT_EQ(samples, 8);
        for (const char* const name : {"first", "second"}) {
          profile.layers.push_back({.name = name,
                                    .parameters = 10,
                                    .forward = {.sample_s = 1000},
                                    .backward = {.sample_s = 3000}});
        }
      });
  ASSERT_EQ(layered.layers.size(), 2U);
  EXPECT_EQ(layered.layers[0].forward, layered.layers[1].forward);
  EXPECT_LT(layered.layers[0].forward.of(8), 1000);  // scaled to the times of the real passes
  EXPECT_GT(layered.layers[0].forward.of(8), 0);
  EXPECT_GT(layered.working_bytes, 0);  // these layers list no activations
}

TEST(DryRunOfDividedModels, is_refused) {
  const FreshDirectory folder;
  setenv("PACELINE_PROFILE", folder.file("profile.json").c_str(), 1);
  harness::run_ranks_ok(2, [&](ProcessGroup& group) {
    SmallRun run({&group, [](auto*) {}});  // has a sharded optimizer
    TrainingRun training(run.group,
                         {.module = run.model.module(),
                          .optimizer = run.optimizer,
                          .gradients = backward_passes(nullptr, run.model),
                          .make_loader =
                              [&](std::uint64_t seed) {
                                return std::make_unique<data::DataLoader>(
                                    std::make_shared<data::ImageSamples>(small_dataset()),
                                    data::DistributedSampler(50, 2, group.rank(), {.seed = seed}),
                                    data::DataLoaderOptions{.batch_size = 8});
                              }},
                         {});
    expect_error(ErrorCode::kInvalid, {"without --mesh and --shard"}, [&] { training.train(); });
  });
  unsetenv("PACELINE_PROFILE");
}

TEST(LayerMeter, measures_layers_that_follow_one_another) {
  harness::run_ranks_ok(1, [](ProcessGroup& group) {
    torch::nn::Linear first(64, 32), second(32, 16);
    const LayerChain chain{.layers = {make_stage(0, first),
                                      {.index = 1,
                                       .forward =
                                           [&](const PipelineStage::Tensors& inputs) {
                                             return PipelineStage::Tensors{second(inputs[0]).exp()};
                                           },
                                       .parameters = second->parameters()}},
                           .make_input =
                               [](std::int64_t samples) {
                                 return at::ones({samples, 64});
                               },
                           .loss = [](const auto& outputs, int) { return outputs[0].sum(); }};
    const auto profiles = profile_layers(group, chain, 8);
    ASSERT_EQ(profiles.size(), 2U);
    EXPECT_EQ(profiles[0].parameters, 64 * 32 + 32);
    EXPECT_EQ(profiles[0].output_bytes, 32 * 4);
    EXPECT_EQ(profiles[1].output_bytes, 16 * 4);
    EXPECT_GE(profiles[0].activation_bytes, 32 * 4);
    EXPECT_GE(profiles[1].activation_bytes, 16 * 4);  // exp() keeps its result
    EXPECT_LT(profiles[1].activation_bytes, 4 * 16 * 4);
    for (const planning::LayerProfile& profile : profiles) {
      EXPECT_GT(profile.forward.of(8), 0);
      EXPECT_GT(profile.backward.of(8), 0);
      EXPECT_GT(profile.input_half.value().of(8), 0);
      EXPECT_GT(profile.weight_half.value().of(8), 0);
      EXPECT_GT(profile.add_s, 0);
      EXPECT_GT(profile.deferred(), 0);
    }
    expect_error(ErrorCode::kInvalid, {"0 samples"}, [&] { profile_layers(group, chain, 0); });
  });
}

TEST(LayerMeter, takes_a_part_away) {
  const planning::LayerProfile whole{.parameters = 10,
                                     .forward = {.fixed_s = 1, .sample_s = 5},
                                     .backward = {.fixed_s = 2, .sample_s = 3},
                                     .input_half = planning::PassCost{.sample_s = 2},
                                     .add_s = 7,
                                     .activation_bytes = 100,
                                     .deferred_bytes = 150};
  const planning::LayerProfile part{.parameters = 4,
                                    .forward = {.fixed_s = 2, .sample_s = 1},
                                    .backward = {.fixed_s = 0, .sample_s = 1},
                                    .input_half = planning::PassCost{.sample_s = 0.5},
                                    .add_s = 3,
                                    .activation_bytes = 60};
  const planning::LayerProfile rest = subtract(whole, part);
  EXPECT_EQ(rest.parameters, 6);
  EXPECT_EQ(rest.forward, (planning::PassCost{.fixed_s = 0, .sample_s = 4}));
  EXPECT_EQ(rest.backward, (planning::PassCost{.fixed_s = 2, .sample_s = 2}));
  EXPECT_EQ(rest.input_half, (planning::PassCost{.sample_s = 1.5}));
  EXPECT_EQ(rest.add_s, 4);
  EXPECT_EQ(rest.activation_bytes, 40);
  EXPECT_EQ(rest.deferred_bytes, 90);
}

}  // namespace
}  // namespace paceline::train
