// A pipeline of calls: the stages of a network are on several workers, and each batch passes
// through them in micro-batches. While a stage computes one micro-batch, the next stage computes
// the previous one:
//
//   paceline run --nproc-per-node 4 rpc_pipeline      (one trainer, three stages)
//
// Without a launcher, the same network is trained in this process and prints the same losses.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <torch/torch.h>

#include "paceline/training/remote/distributed_optimizer.h"
#include "paceline/training/tensor/compute_settings.h"

namespace remote = paceline::remote;
namespace rpc = paceline::rpc;

constexpr int kStages = 3, kMicroBatches = 4, kSteps = 5;
constexpr remote::SGD kOptimizer{.lr = 0.1, .momentum = 0.9};

struct Stage {  // how another worker creates a stage
  static constexpr std::string_view kName = "stage";
  struct Arguments {
    int number = 0;
    static auto fields(auto& m) { return std::tie(m.number); }
  };
  static torch::nn::Sequential make(const Arguments& arguments) {
    torch::manual_seed(1 + arguments.number);
    return torch::nn::Sequential(torch::nn::Linear(32, 64), torch::nn::GELU(),
                                 torch::nn::Linear(64, 32),
                                 torch::nn::LayerNorm(torch::nn::LayerNormOptions({32})));
  }
};

struct Batch {
  explicit Batch(int step) {
    torch::manual_seed(100 + step);
    inputs = torch::randn({4 * kMicroBatches, 32}).chunk(kMicroBatches);
    targets = torch::randn({4 * kMicroBatches, 32}).chunk(kMicroBatches);
  }
  torch::Tensor loss(int i, const torch::Tensor& output) const {
    return torch::mse_loss(output, targets[static_cast<std::size_t>(i)]) / kMicroBatches;
  }
  std::vector<torch::Tensor> inputs, targets;
};

void print(int step, const std::vector<torch::Tensor>& losses) {
  double sum = 0;
  for (const auto& loss : losses) sum += loss.item<double>();
  std::printf("step %d: loss %.9f\n", step, sum);
}

void train_alone() {
  std::vector<torch::nn::Sequential> stages;
  std::vector<torch::Tensor> parameters;
  for (int i = 0; i < kStages; ++i) {
    stages.push_back(Stage::make({i}));
    for (const auto& parameter : stages.back()->parameters()) parameters.push_back(parameter);
  }
  const auto optimizer = kOptimizer.make(parameters);
  for (int step = 0; step < kSteps; ++step) {
    const Batch batch(step);
    std::vector<torch::Tensor> losses;
    for (int i = 0; i < kMicroBatches; ++i) {
      auto output = batch.inputs[static_cast<std::size_t>(i)];
      for (auto& stage : stages) output = stage->forward(output);
      losses.push_back(batch.loss(i, output));
      losses.back().backward();
    }
    optimizer->step();
    optimizer->zero_grad();
    print(step, losses);
  }
}

// Runs the forward and backward pass of one micro-batch, while other threads run the others. The
// calling thread waits for one stage after the other.
torch::Tensor run(const std::vector<remote::RemoteModule>& stages, const Batch& batch, int i) {
  auto output = batch.inputs[static_cast<std::size_t>(i)];
  for (const auto& stage : stages) output = stage->forward(output);
  const auto loss = batch.loss(i, output);
  loss.backward();
  return loss;
}

void train_remotely(rpc::Workers& workers) {
  std::vector<remote::RemoteModule> stages;
  for (int i = 0; i < kStages; ++i) {
    const std::string owner = "worker" + std::to_string(1 + i);
    stages.push_back(remote::create<Stage>(workers, owner, {i}));
  }
  remote::DistributedOptimizer optimizer(workers, stages, kOptimizer);
  for (int step = 0; step < kSteps; ++step) {
    const Batch batch(step);
    std::vector<torch::Tensor> losses(kMicroBatches);
    std::vector<std::future<torch::Tensor>> running;
    for (int i = 0; i < kMicroBatches; ++i) {
      running.push_back(std::async(std::launch::async, [&, i] { return run(stages, batch, i); }));
    }
    for (int i = 0; i < kMicroBatches; ++i) {
      losses[static_cast<std::size_t>(i)] = running[static_cast<std::size_t>(i)].get();
    }
    // The gradients are added up in the order of this list, whichever micro-batch ended first.
    optimizer.step(losses);
    print(step, losses);
  }
}

int main() {
  paceline::set_thread_count(1);
  const char* const rank = std::getenv("RANK");  // set by `paceline run`
  if (rank == nullptr) return train_alone(), 0;
  if (std::string_view(rank) == "0") return train_remotely(*rpc::join("trainer")), 0;
  const auto serve = [](rpc::Workers& self) {
    remote::serve_modules(self);
    remote::serve<Stage>(self);
  };
  rpc::join("worker" + std::string(rank), {.prepare = serve})->wait_until_gone("trainer");
}
