// The same numbers as Python's PyTorch: losses of DistributedDataParallel from the same weights and
// batches, and the sampler's indices. python_reference.py says what it leaves in which file.

#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <torch/torch.h>

#include "paceline/core/check.h"
#include "paceline/data/distributed_sampler.h"
#include "paceline/models/cnn.h"
#include "paceline/models/mnist_net.h"
#include "paceline/optim/adam.h"
#include "paceline/optim/sgd.h"
#include "paceline/parallel/distributed_data_parallel.h"

#include "tests/harness/process_ranks.h"

namespace paceline {
namespace {

constexpr int kRanks = 2;
constexpr std::int64_t kSteps = 50;
constexpr std::int64_t kBatch = 8;
constexpr double kTolerance = 1e-5;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "paceline-parity-XXXXXX").string();
    check(mkdtemp(name.data()) != nullptr, "cannot make the folder {}", name);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

struct Ended {
  int code;
  std::string output;
};

Ended run_command(const std::string& command) {
  Ended ended{-1, ""};
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return ended;
  std::array<char, 4096> block;
  while (const auto count = fread(block.data(), 1, block.size(), pipe))
    ended.output.append(block.data(), count);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) ended.code = WEXITSTATUS(status);
  return ended;
}

// Without Python's PyTorch there is nothing to compare with, and the test has failed.
testing::AssertionResult run_reference(const std::string& arguments) {
  if (run_command("/usr/bin/python3 -c 'import torch, numpy'").code != 0) {
    return testing::AssertionFailure()
           << "/usr/bin/python3 has no torch; apt-get install python3-torch";
  }
  const auto ended =
      run_command(fmt::format("/usr/bin/python3 '{}' {}", PACELINE_PYTHON_REFERENCE, arguments));
  if (ended.code == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << "python_reference.py " << arguments << " ended with " << ended.code << ":\n"
         << ended.output;
}

at::Tensor read_tensor(const std::string& path, at::ScalarType type, at::IntArrayRef sizes) {
  at::Tensor tensor = at::empty(sizes, type);
  std::ifstream in(path, std::ios::binary);
  in.read(static_cast<char*>(tensor.data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
  check(in.good() && in.peek() == std::ifstream::traits_type::eof(),
        "{} is missing or not {} bytes long", path, tensor.nbytes());
  return tensor;
}

void set_weights(torch::nn::Module& module, const std::string& path) {
  std::int64_t count = 0;
  for (const auto& parameter : module.parameters()) count += parameter.numel();
  const auto weights = read_tensor(path, at::kFloat, {count});
  std::int64_t begin = 0;
  const at::NoGradGuard no_grad;
  for (auto& parameter : module.parameters()) {
    parameter.copy_(weights.narrow(0, begin, parameter.numel()).view_as(parameter));
    begin += parameter.numel();
  }
}

std::unique_ptr<optim::Optimizer> make_optimizer(const std::string& name,
                                                 std::vector<at::Tensor> parameters) {
  if (name == "sgd") {
    return std::make_unique<optim::Sgd>(
        std::move(parameters),
        optim::SgdOptions{.lr = 0.01, .momentum = 0.9, .weight_decay = 1e-4});
  }
  return std::make_unique<optim::Adam>(std::move(parameters),
                                       optim::AdamOptions{.lr = 1e-4, .weight_decay = 0.005});
}

// Trains as Python did; throws at the first loss that is not Python's. Returns the largest relative
// difference.
template <class Module>
std::string train(ProcessGroup& group, const Module& module, const TemporaryFolder& folder,
                  const std::string& optimizer_name, std::vector<std::int64_t> shape) {
  at::set_num_threads(1);
  set_weights(*module.ptr(), folder.file("weights.f32"));
  shape.insert(shape.begin(), {kSteps, kRanks, kBatch});
  const auto images = read_tensor(folder.file("images.f32"), at::kFloat, shape);
  const auto labels = read_tensor(folder.file("labels.i64"), at::kLong, {kSteps, kRanks, kBatch});
  const auto reference =
      read_tensor(folder.file(optimizer_name + ".losses.f32"), at::kFloat, {kRanks, kSteps});

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
    const double mine = loss.template item<float>();
    const double python = reference[group.rank()][step].item<float>();
    const double difference = std::abs(mine - python) / std::abs(python);
    largest = std::max(largest, difference);
    check(
        difference <= kTolerance,
        "{}, rank {}, step {}: the loss {:.9g} is not Python's {:.9g} (relative difference {:.1e})",
        optimizer_name, group.rank(), step, mine, python, difference);
  }
  return fmt::format("{:.1e}", largest);
}

// `make` runs in each rank's process.
template <class Make>
void expect_pythons_losses(const std::string& model, const Make& make,
                           const std::vector<std::int64_t>& shape) {
  const TemporaryFolder folder;
  ASSERT_TRUE(run_reference(model + " " + folder.file("")));
  for (const std::string optimizer : {"sgd", "adam"}) {
    const auto results = harness::run_process_ranks(kRanks, [&](ProcessGroup& group) {
      return train(group, make(), folder, optimizer, shape);
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
  const TemporaryFolder folder;
  ASSERT_TRUE(run_reference("samplers " + folder.file("samplers")));
  std::ifstream in(folder.file("samplers"));
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
