// The memory that a run plans, and the memory that it takes.

#include <cmath>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/training/data/dataset.h"
#include "paceline/training/models/layers.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/parallel/fully_shard.h"
#include "paceline/training/tensor/tensor_allocator.h"
#include "paceline/training/tensor/tensor_memory.h"
#include "paceline/training/train/libtorch_facts.h"
#include "paceline/training/train/run_report.h"
#include "paceline/training/train/training_process.h"
#include "paceline/training/train/training_run.h"

#include "tests/harness/borrowed_group.h"
#include "tests/harness/fresh_directory.h"
#include "tests/harness/process_ranks.h"
#include "tests/harness/thread_ranks.h"

namespace paceline::train {
namespace {

constexpr std::int64_t kRunFeatures = 1024;
constexpr std::int64_t kRunBatch = 64;
constexpr std::int64_t kRunSteps = 4;

// Layers of 4 MiB of weights, without biases.
std::shared_ptr<torch::nn::SequentialImpl> square_layers(std::int64_t count) {
  torch::manual_seed(1);
  torch::nn::Sequential net;
  for (std::int64_t i = 0; i < count; ++i)
    net->push_back(
        torch::nn::Linear(torch::nn::LinearOptions(kRunFeatures, kRunFeatures).bias(false)));
  return net.ptr();
}

TEST(RunMemory, a_plan_has_the_bytes_of_what_it_counts) {
  const auto results = harness::run_process_ranks(1, [](ProcessGroup& group) {
    at::set_num_threads(1);
    constexpr std::int64_t kLayers = 2;
    constexpr double kParameters = kLayers * kRunFeatures * kRunFeatures;
    const auto net = square_layers(kLayers);
    optim::Adam adam(net->parameters(), {});
    const at::Tensor input = at::ones({kRunBatch, kRunFeatures});
    RunMemory memory;
    EXPECT_FALSE(memory.report(group));
    memory.begin(adam);
    net->forward(input).exp().sum().backward();
    memory.count_gradients(adam);
    adam.step();
    adam.zero_grad();
    memory.plan(adam, 1000);
    const auto report = memory.report(group);
    EXPECT_TRUE(report);
    if (!report) return std::string();
    EXPECT_EQ(report->rank.parameters, 4 * kParameters);
    EXPECT_EQ(report->rank.gradients, 4 * kParameters);
    EXPECT_EQ(report->rank.optimizer, 8 * kParameters);
    EXPECT_EQ(report->rank.working, 1000);
    // The tensors between the layers, and the exponentials.
    EXPECT_GE(report->rank.activations, 2 * kRunBatch * kRunFeatures * 4);
    EXPECT_LT(report->rank.activations, 10 * kRunBatch * kRunFeatures * 4);
    EXPECT_GT(report->rank.process, 0);
    EXPECT_EQ(report->host_planned, report->rank.all());
    EXPECT_EQ(report->host_peak, report->rank_peak);
    EXPECT_GT(report->rank_peak, 12 * kParameters);
    EXPECT_THAT(report->table(), ::testing::ContainsRegex(
                                     "memory of a host +[0-9]+ MB planned, [0-9]+ MB at the peak"));
    EXPECT_THAT(report->table(), ::testing::HasSubstr("parameters 8 MB, gradients 8 MB, optimizer "
                                                      "17 MB"));
    return std::string();
  });
  EXPECT_EQ(results[0].exit_code, 0) << results[0].report;
}

// The memory of ranks that are threads of one process cannot be told apart.
TEST(RunMemory, there_is_no_plan_where_tensors_are_counted_already) {
  harness::run_ranks_ok(1, [](ProcessGroup& group) {
    const TensorMemoryMeter other;
    optim::Adam adam({at::ones({1}).set_requires_grad(true)}, {});
    RunMemory memory;
    memory.begin(adam);
    memory.count_gradients(adam);
    memory.plan(adam, 0);
    EXPECT_FALSE(memory.report(group));
  });
}

// Sanitizers need extra memory for each byte.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
struct MemorySetting {
  int ranks = 1;
  int stage = 0;
  bool saves = false;
};

// The metrics at the end of a run.
std::string train_with(const MemorySetting& setting) {
  const FreshDirectory folder;
  const std::string metrics = folder.file("metrics");
  const auto results = harness::run_process_ranks(setting.ranks, [&](ProcessGroup& group) {
    at::set_num_threads(1);
    keep_large_blocks();
    const SymmetricTensors symmetric(group);
    const auto net = square_layers(8);
    optim::Adam adam(net->parameters(), {.lr = 1e-4});
    DistributedDataParallelOptions options;
    if (setting.stage > 0)
      options = paceline::detail::sharded_options(adam, {.stage = setting.stage});
    DistributedDataParallel model(net, harness::borrowed(group), options);
    TrainingRun run(
        harness::borrowed(group),
        {.module = *net,
         .optimizer = adam,
         .gradients = backward_passes(
             [&](const data::Batch& batch) { return model.forward(batch.data).square().mean(); },
             model),
         .make_loader =
             [&](std::uint64_t seed) {
               const auto samples = std::make_shared<data::SampleDataset>(
                   "ones", kRunBatch * kRunSteps * group.world_size(),
                   [](std::int64_t, std::int64_t) -> data::Sample {
                     return {at::ones({kRunFeatures})};
                   });
               return std::make_unique<data::DataLoader>(
                   samples,
                   data::DistributedSampler(samples->size(), group.world_size(), group.rank(),
                                            {.seed = seed}),
                   data::DataLoaderOptions{.batch_size = kRunBatch});
             },
         .test = [] { return TestResult{}; }},
        {.checkpoints = {.folder = setting.saves ? folder.file("run") : ""}, .metrics = metrics});
    EXPECT_EQ(run.train(), 0);
    EXPECT_EQ(run.state().step, kRunSteps);
    return std::string();
  });
  for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.report;
  std::stringstream text;
  text << std::ifstream(metrics).rdbuf();
  return text.str();
}

double value_in(const std::string& metrics, const std::string& name) {
  const std::string key = "\"" + name + "\":";
  const auto at = metrics.find(key);
  EXPECT_NE(at, std::string::npos) << name << " is not in: " << metrics;
  return at == std::string::npos ? NAN : std::stod(metrics.substr(at + key.size()));
}

// Without sharding a rank needs 134 MB for weights, gradients and Adam, in addition to the process
// itself.
TEST(RunMemory, a_run_takes_what_was_planned_after_its_first_step) {
  constexpr double kParameters = 8 * kRunFeatures * kRunFeatures;
  for (const MemorySetting& setting :
       {MemorySetting{1, 0}, MemorySetting{2, 0}, MemorySetting{1, 3}, MemorySetting{2, 3},
        MemorySetting{2, 1, true}}) {
    const std::string metrics = train_with(setting);
    const auto of = [&](const char* name) { return value_in(metrics, name); };
    const auto what = ::testing::Message() << setting.ranks << " ranks, stage " << setting.stage;
    EXPECT_NEAR(of("host_memory_planned") / of("host_memory_peak"), 1, 0.25) << what;
    EXPECT_NEAR(of("rank_memory_planned") / of("rank_memory_peak"), 1, 0.25) << what;
    const double shared = setting.stage == 3 ? 4 * kParameters : 0;
    const double own = setting.stage == 3   ? 12 * kParameters / setting.ranks
                       : setting.stage == 1 ? (8 + 8.0 / setting.ranks) * kParameters
                                            : 16 * kParameters;
    EXPECT_GT(of("host_memory_planned"), shared + setting.ranks * own) << what;
    EXPECT_NEAR(of("host_memory_planned"), setting.ranks * of("rank_memory_planned"),
                0.1 * of("host_memory_planned"))
        << what;
  }
}
#endif

}  // namespace
}  // namespace paceline::train
