// A ResNet-18 divided between two workers and trained by a third one:
//
//   paceline run --nproc-per-node 3 split_resnet
//
// Without a launcher, the same network is trained in this process and prints the same losses.

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>

#include <torch/torch.h>

#include "paceline/training/remote/distributed_optimizer.h"
#include "paceline/training/tensor/compute_settings.h"

#include "examples/rpc/resnet_half.h"

namespace remote = paceline::remote;
namespace rpc = paceline::rpc;

constexpr remote::SGD kOptimizer{.lr = 0.01, .momentum = 0.9};

// Trains four steps on one and the same batch. `forward` is the model; `step` gets the loss after
// backward() and updates the parameters.
void train(const std::function<torch::Tensor(const torch::Tensor& images)>& forward,
           const std::function<void(const torch::Tensor& loss)>& step) {
  for (int i = 0; i < 4; ++i) {
    torch::manual_seed(100);
    const auto images = torch::randn({8, 3, 16, 16});
    const auto labels = torch::randint(10, {8}, torch::kLong);
    const auto loss = torch::nn::functional::cross_entropy(forward(images), labels);
    loss.backward();
    step(loss);
    std::printf("step %d: loss %.9f\n", i, loss.item<double>());
  }
}

void train_alone() {
  auto first = ResNetHalf::make({true, 1}), second = ResNetHalf::make({false, 2});
  auto parameters = first->parameters();
  for (const auto& parameter : second->parameters()) parameters.push_back(parameter);
  const auto optimizer = kOptimizer.make(parameters);
  train([&](const torch::Tensor& images) { return second->forward(first->forward(images)); },
        [&](const torch::Tensor&) { optimizer->step(), optimizer->zero_grad(); });
}

void train_remotely(rpc::Workers& workers) {
  const auto create = [&](const std::string& owner, const ResNetHalf::Arguments& arguments) {
    return remote::create<ResNetHalf>(workers, owner, arguments);
  };
  const auto first = create("worker1", {true, 1}), second = create("worker2", {false, 2});
  remote::DistributedOptimizer optimizer(workers, {first, second}, kOptimizer);
  train([&](const torch::Tensor& images) { return second->forward(first->forward(images)); },
        [&](const torch::Tensor& loss) { optimizer.step(loss); });
}

int main() {
  paceline::set_thread_count(1);
  const char* const rank = std::getenv("RANK");  // set by `paceline run`
  if (rank == nullptr) return train_alone(), 0;
  if (std::string_view(rank) == "0") return train_remotely(*rpc::join("trainer")), 0;
  const auto serve = [](rpc::Workers& self) {
    remote::serve_modules(self);
    remote::serve<ResNetHalf>(self);
  };
  rpc::join("worker" + std::string(rank), {.prepare = serve})->wait_until_gone("trainer");
}
