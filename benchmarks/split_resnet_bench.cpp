// A ResNet-18 cut between two workers and trained by a third one, on random images: milliseconds
// per step, for remote_beside_python.py, which runs it in turns with PyTorch.
//
//   paceline run --nproc-per-node 3 split_resnet_bench --batch 32 --micro-batches 4 --steps 10

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <future>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <torch/torch.h>

#include "paceline/training/remote/distributed_optimizer.h"
#include "paceline/training/tensor/compute_settings.h"

#include "examples/rpc/resnet_half.h"

namespace remote = paceline::remote;
namespace rpc = paceline::rpc;
using Clock = std::chrono::steady_clock;

namespace {

struct Options {
  int batch = 32, image_size = 32, micro_batches = 4, steps = 10;
};

// Trains with `micro_batches` that pass through both halves, forward and backward, at the same
// time.
class Trainer {
 public:
  Trainer(rpc::Workers& workers, const Options& options)
      : first_(create(workers, "worker1", {true, 1})),
        second_(create(workers, "worker2", {false, 2})),
        optimizer_(workers, {first_, second_}, remote::SGD{.lr = 0.001}),
        images_(torch::randn({options.batch, 3, options.image_size, options.image_size})
                    .chunk(options.micro_batches)),
        labels_(torch::randint(10, {options.batch}, torch::kLong).chunk(options.micro_batches)) {}

  void step() {
    std::vector<std::future<torch::Tensor>> running;
    for (std::size_t i = 0; i < images_.size(); ++i) {
      running.push_back(std::async(std::launch::async, [this, i] { return pass(i); }));
    }
    std::vector<torch::Tensor> losses;
    for (auto& loss : running) losses.push_back(loss.get());
    optimizer_.step(losses);
  }

 private:
  static remote::RemoteModule create(rpc::Workers& workers, const std::string& owner,
                                     const ResNetHalf::Arguments& arguments) {
    return remote::create<ResNetHalf>(workers, owner, arguments);
  }
  torch::Tensor pass(std::size_t i) const {
    const auto output = second_->forward(first_->forward(images_[i]));
    auto loss = torch::nn::functional::cross_entropy(output, labels_[i]) /
                static_cast<double>(images_.size());
    loss.backward();
    return loss;
  }

  const remote::RemoteModule first_, second_;
  remote::DistributedOptimizer optimizer_;
  const std::vector<torch::Tensor> images_, labels_;
};

void run(const Options& options) {
  paceline::set_thread_count(1);
  const std::string rank = std::getenv("RANK");
  if (rank != "0") {
    const auto serve = [](rpc::Workers& self) {
      remote::serve_modules(self);
      remote::serve<ResNetHalf>(self);
    };
    rpc::join("worker" + rank, {.prepare = serve})->wait_until_gone("trainer");
    return;
  }
  const auto workers = rpc::join("trainer");
  Trainer trainer(*workers, options);
  for (int i = 0; i < 2; ++i) trainer.step();
  const auto begin = Clock::now();
  for (int i = 0; i < options.steps; ++i) trainer.step();
  const std::chrono::duration<double, std::milli> time = Clock::now() - begin;
  std::printf("{\"ms\": %.3f}\n", time.count() / options.steps);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Steps of a ResNet-18 that is cut over two workers"};
  app.add_option("--batch", options.batch, "Images of a step");
  app.add_option("--image-size", options.image_size, "Height and width");
  app.add_option("--micro-batches", options.micro_batches, "Parts of a batch");
  app.add_option("--steps", options.steps, "After 2 to warm up");
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
