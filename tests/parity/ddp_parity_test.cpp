// DistributedDataParallel with unused parameters, with communication hooks and with SyncBatchNorm
// against Python's PyTorch: losses of every step and the weights after the last one.
// ddp_reference.py says what it leaves in which file.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <torch/torch.h>

#include "paceline/collectives/group/process_group.h"
#include "paceline/core/check.h"
#include "paceline/parallel/compression_hooks.h"
#include "paceline/parallel/distributed_data_parallel.h"
#include "paceline/parallel/sync_batch_norm.h"

#include "tests/harness/process_ranks.h"

namespace paceline {
namespace {

constexpr int kDdpRanks = 2;
constexpr std::int64_t kDdpSteps = 20;
constexpr std::int64_t kDdpBatch = 8;
constexpr std::int64_t kDdpWidth = 20;

// As the reference's; the norm is there in every case, so that all have the same weights.
struct DdpNet : torch::nn::Module {
  explicit DdpNet(const std::shared_ptr<ProcessGroup>& group, bool with_norm)
      : with_norm(with_norm) {
    first = register_module("first", torch::nn::Linear(kDdpWidth, 30));
    extra = register_module("extra", torch::nn::Linear(30, 30));
    norm = register_module("norm", SyncBatchNorm(torch::nn::BatchNormOptions(30), group));
    last = register_module("last", torch::nn::Linear(30, 10));
    for (auto& parameter : norm->parameters()) parameter.requires_grad_(with_norm);
  }
  at::Tensor forward(const at::Tensor& input, bool use_extra) {
    at::Tensor features = first(input);
    features = at::relu(with_norm ? norm(features) : features);
    if (use_extra) features = features + extra(features);
    return last(features);
  }
  bool with_norm;
  torch::nn::Linear first{nullptr}, extra{nullptr}, last{nullptr};
  SyncBatchNorm norm{nullptr};
};

bool is_used(int rank, std::int64_t step) {
  return step % 3 == 2 || (step % 3 == 1 && rank == step % 2);
}

class DdpParity : public testing::Test {
 protected:
  // Runs the reference once for all tests of this program.
  static void SetUpTestSuite() {
    folder_ = std::filesystem::temp_directory_path() / fmt::format("ddp-parity-{}", getpid());
    std::filesystem::create_directories(folder_);
    const std::string command =
        fmt::format("/usr/bin/python3 '{}' '{}' > '{}/output' 2>&1", PACELINE_DDP_REFERENCE,
                    folder_.string(), folder_.string());
    ASSERT_EQ(std::system(command.c_str()), 0)
        << std::ifstream(folder_ / "output").rdbuf()
        << "\nDebian's package python3-torch brings PyTorch for /usr/bin/python3";
  }
  static void TearDownTestSuite() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  static at::Tensor read(const std::string& name, at::IntArrayRef sizes,
                         at::ScalarType type = at::kFloat) {
    at::Tensor tensor = at::empty(sizes, type);
    std::ifstream in(folder_ / name, std::ios::binary);
    in.read(static_cast<char*>(tensor.data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
    check(in.good() && in.peek() == std::ifstream::traits_type::eof(),
          "{} is missing or not {} bytes long", name, tensor.nbytes());
    return tensor;
  }
  static std::uint64_t seed_of_factors() {
    std::uint64_t seed = 0;
    std::ifstream(folder_ / "powersgd.seed") >> seed;
    return seed;
  }

  static at::Tensor flat(const torch::nn::Module& module) {
    std::vector<at::Tensor> parts;
    for (const auto& parameter : module.parameters()) parts.push_back(parameter.detach().flatten());
    return at::cat(parts);
  }
  static void set_weights(torch::nn::Module& module) {
    const at::NoGradGuard no_grad;
    const auto weights = read("weights.f32", {flat(module).numel()});
    std::int64_t begin = 0;
    for (auto& parameter : module.parameters()) {
      parameter.copy_(weights.narrow(0, begin, parameter.numel()).view_as(parameter));
      begin += parameter.numel();
    }
  }

  // Trains as Python did; throws at the first difference above the tolerance, which is relative
  // for losses and absolute for weights. Returns the largest difference of a loss.
  static std::string train(ProcessGroup& group, const std::string& name,
                           std::shared_ptr<CommunicationHook> hook, double tolerance) {
    at::set_num_threads(1);
    const std::shared_ptr<ProcessGroup> shared(&group, [](ProcessGroup*) {});
    const bool is_norm = name == "batch_norm";
    const auto net = std::make_shared<DdpNet>(shared, is_norm);
    set_weights(*net);
    const auto inputs = read("inputs.f32", {kDdpSteps, kDdpRanks, kDdpBatch, kDdpWidth});
    const auto labels = read("labels.i64", {kDdpSteps, kDdpRanks, kDdpBatch}, at::kLong);
    const auto reference = read(name + ".losses.f32", {kDdpRanks, kDdpSteps});

    DistributedDataParallel model(net, shared);
    if (hook) model.register_comm_hook(std::move(hook));
    std::vector<at::Tensor> trained;
    for (const auto& parameter : net->parameters()) {
      if (parameter.requires_grad()) trained.push_back(parameter);
    }
    torch::optim::SGD optimizer(trained, torch::optim::SGDOptions(0.05).momentum(0.9));
    double largest = 0;
    for (std::int64_t step = 0; step < kDdpSteps; ++step) {
      for (auto& parameter : trained) parameter.mutable_grad() = at::Tensor();
      const auto logits =
          model(inputs[step][group.rank()], name != "unused" || is_used(group.rank(), step));
      const auto loss = torch::nn::functional::cross_entropy(logits, labels[step][group.rank()]);
      loss.backward();
      optimizer.step();
      double mine = loss.item<float>();
      // The whole batch's loss is the mean of the ranks'.
      if (is_norm) mine = all_reduce_value(group, mine) / kDdpRanks;
      const double python = reference[group.rank()][step].item<float>();
      const double difference = std::abs(mine - python) / std::abs(python);
      largest = std::max(largest, difference);
      check(difference <= tolerance,
            "{}, rank {}, step {}: the loss {:.9g} is not Python's {:.9g} (relative difference "
            "{:.1e})",
            name, group.rank(), step, mine, python, difference);
    }
    const at::Tensor weights = flat(*net);
    const double apart =
        (weights - read(name + ".final.f32", {weights.numel()})).abs().max().item<double>();
    check(apart <= tolerance, "{}, rank {}: a weight is {:.1e} from Python's", name, group.rank(),
          apart);
    return fmt::format("{:.1e}, weights {:.1e}", largest, apart);
  }

  // `make_hook` runs in each rank's process; it may return null.
  template <class MakeHook>
  static void expect_pythons(const std::string& name, const MakeHook& make_hook, double tolerance) {
    const auto results = harness::run_process_ranks(
        kDdpRanks, [&](ProcessGroup& group) { return train(group, name, make_hook(), tolerance); });
    for (const auto& result : results) {
      EXPECT_EQ(result.exit_code, 0) << result.report;
      std::printf("%s: largest difference of losses %s\n", name.c_str(), result.report.c_str());
    }
  }

  inline static std::filesystem::path folder_;
};

std::shared_ptr<CommunicationHook> no_hook() { return nullptr; }

TEST_F(DdpParity, a_plain_training_is_pythons) { expect_pythons("plain", no_hook, 1e-5); }

// The extra layer is used by no rank, by one of them, or by both, in turns.
TEST_F(DdpParity, unused_parameters_are_pythons) { expect_pythons("unused", no_hook, 1e-5); }

TEST_F(DdpParity, float16_compression_is_pythons) {
  expect_pythons(
      "fp16", [] { return std::make_shared<CompressHook>(at::kHalf); }, 1e-5);
}

TEST_F(DdpParity, bfloat16_compression_is_pythons) {
  // A gradient that is rounded the other way is off by 2^-8 of its size.
  expect_pythons(
      "bf16", [] { return std::make_shared<CompressHook>(at::kBFloat16); }, 1e-3);
}

TEST_F(DdpParity, power_sgd_of_ranks_1_and_2_is_pythons) {
  for (const std::int64_t rank : {1, 2}) {
    expect_pythons(
        fmt::format("powersgd{}", rank),
        [rank] {
          return std::make_shared<PowerSgdHook>(
              PowerSgdOptions{.rank = rank, .start_step = 2, .seed = seed_of_factors()});
        },
        1e-4);
  }
}

TEST_F(DdpParity, sync_batch_norm_is_pythons_batch_norm_on_the_whole_batch) {
  expect_pythons("batch_norm", no_hook, 1e-5);
}

}  // namespace
}  // namespace paceline
