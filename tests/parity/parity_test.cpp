// Compares with Python's PyTorch: the losses of DistributedDataParallel from the same weights and
// batches, and the sampler's indices. python_reference.py describes the files that it writes.

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/data/distributed_sampler.h"
#include "paceline/training/models/cnn.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/parallel/distributed_data_parallel.h"
#include "paceline/training/train/training_step.h"

#include "tests/harness/process_ranks.h"
#include "tests/parity/reference.h"

namespace paceline {
namespace {

constexpr int kRanks = 2;
constexpr std::int64_t kSteps = 50;
constexpr std::int64_t kBatch = 8;
constexpr double kTolerance = 1e-5;

std::unique_ptr<optim::Optimizer> make_optimizer(const std::string& name,
                                                 std::vector<at::Tensor> parameters) {
  if (name == "sgd") {
    return std::make_unique<optim::SGD>(
        std::move(parameters),
        optim::SGDOptions{.lr = 0.01, .momentum = 0.9, .weight_decay = 1e-4});
  }
  return std::make_unique<optim::Adam>(std::move(parameters),
                                       optim::AdamOptions{.lr = 1e-4, .weight_decay = 0.005});
}

// Trains as Python did; throws at the first loss that differs from Python's. Returns the largest
// relative difference.
template <class Module>
std::string train(ProcessGroup& group, const Module& module, const parity::Reference& reference,
                  const std::string& optimizer_name, std::vector<std::int64_t> shape) {
  at::set_num_threads(1);
  parity::set_weights(
      *module.ptr(), reference.tensor("weights.f32", {parity::flat(module->parameters()).numel()}));
  shape.insert(shape.begin(), {kSteps, kRanks, kBatch});
  const auto images = reference.tensor("images.f32", shape);
  const auto labels = reference.tensor("labels.i64", {kSteps, kRanks, kBatch}, at::kLong);
  const auto losses = reference.tensor(optimizer_name + ".losses.f32", {kRanks, kSteps});

  DistributedDataParallel model(module,
                                std::shared_ptr<ProcessGroup>(&group, [](ProcessGroup*) {}));
  const auto optimizer = make_optimizer(optimizer_name, model->parameters());
  double largest = 0;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    const auto logits = model.forward(images[step][group.rank()]);
    auto loss = torch::nn::functional::cross_entropy(logits, labels[step][group.rank()]);
    loss.backward();
    optimizer->step();
    largest = std::max(
        largest, parity::require_same_loss(
                     fmt::format("{}, rank {}, step {}", optimizer_name, group.rank(), step),
                     loss.template item<float>(), losses[group.rank()][step].template item<float>(),
                     kTolerance));
  }
  return fmt::format("{:.1e}", largest);
}

// `make` runs in each rank's process.
template <class Make>
void expect_pythons_losses(const std::string& model, const Make& make,
                           const std::vector<std::int64_t>& shape) {
  const parity::Reference reference("python_reference.py", model);
  ASSERT_EQ(reference.failure(), "");
  for (const std::string optimizer : {"sgd", "adam"}) {
    const auto results = harness::run_process_ranks(kRanks, [&](ProcessGroup& group) {
      return train(group, make(), reference, optimizer, shape);
    });
    for (const auto& result : results) {
      EXPECT_EQ(result.exit_code, 0) << result.report;
      std::printf("%s, %s: largest relative difference %s\n", model.c_str(), optimizer.c_str(),
                  result.report.c_str());
    }
  }
}

TEST(Parity, losses_of_the_cnn_are_pythons) {
  expect_pythons_losses("cnn",
                        [] { return models::Cnn(models::CnnOptions{.height = 16, .width = 16}); },
                        {3, 16, 16});
}

TEST(Parity, losses_of_the_mnist_net_are_pythons) {
  expect_pythons_losses("net", [] { return models::MnistNet(); }, {1, 28, 28});
}

struct SamplerCase {
  std::int64_t num_samples = 0;
  int ranks = 0;
  data::SamplerOptions options;
  std::int64_t epoch = 0;
  int rank = 0;
  std::vector<std::int64_t> indices;
};

SamplerCase parse(const std::string& line) {
  std::istringstream in(line);
  SamplerCase result;
  std::size_t count = 0;
  in >> result.num_samples >> result.ranks >> result.options.seed >> result.epoch >>
      result.options.shuffle >> result.options.drop_last >> result.rank >> count;
  result.indices.resize(count);
  for (auto& index : result.indices) in >> index;
  check(!in.fail(), "the table of sampler indices has a line that is cut off: {}", line);
  return result;
}

TEST(Parity, sampler_indices_are_pythons) {
  const parity::Reference reference("python_reference.py", "samplers");
  ASSERT_EQ(reference.failure(), "");
  std::ifstream in(reference.file("samplers"));
  int num_cases = 0;
  for (std::string line; std::getline(in, line); ++num_cases) {
    const auto expected = parse(line);
    data::DistributedSampler sampler(expected.num_samples, expected.ranks, expected.rank,
                                     expected.options);
    sampler.set_epoch(expected.epoch);
    ASSERT_EQ(sampler.indices(), expected.indices)
        << line.substr(0, 60) << " (samples, ranks, seed, epoch, shuffle, drop_last, rank, ...)";
  }
  EXPECT_GT(num_cases, 1000);
}

}  // namespace
}  // namespace paceline
