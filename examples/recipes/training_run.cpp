// A whole program with TrainingRun: a model and a metric of your own, a stop when the metric no
// longer improves, the best weights, checkpoints, and the options that a run's messages suggest.
//
//   paceline run --nproc-per-node 2 training_run FOLDER [--resume] [--epochs N]

#include <memory>
#include <stdexcept>
#include <string>

#include <torch/torch.h>

#include "paceline/paceline.h"

namespace data = paceline::data;
namespace train = paceline::train;

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::relu(first(x))); }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(2, 32));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(32, 1));
};
TORCH_MODULE(Net);

// Points with their distance from the origin.
std::shared_ptr<data::TensorDataset> make_points(std::int64_t count) {
  const auto points = torch::rand({count, 2}) * 2 - 1;
  return std::make_shared<data::TensorDataset>(
      "points", std::vector<at::Tensor>{points, points.norm(2, 1, true)});
}

int run(const std::string& folder, train::TrainingRunOptions options) {
  const train::TrainingProcess process;
  const auto& group = process.group();
  torch::manual_seed(1);  // every rank makes the same points
  const auto points = make_points(2000), unseen = make_points(501);
  data::DataLoader tests(unseen, data::evaluation_indices(unseen->size(), group),
                         {.batch_size = 100});

  paceline::DistributedDataParallel model(Net(), group);
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(1e-2));
  const auto loss = [&](const data::Batch& batch) {
    return torch::mse_loss(model.forward(batch.data), batch.target);
  };
  const auto test = [&]() -> train::TestResult {
    const torch::NoGradGuard no_grad;
    auto sums = torch::zeros({3}, torch::kDouble);  // squared error, absolute error, samples
    for (const data::Batch& batch : tests.epoch(0)) {
      const auto error = model.forward(batch.data) - batch.target;
      sums += torch::stack({error.square().sum(), error.abs().sum(), torch::tensor(error.size(0))});
    }
    paceline::all_reduce(group, sums);
    const double count = sums[2].item<double>(), mean = sums[1].item<double>() / count;
    return {.loss = sums[0].item<double>() / count,
            .summary = "mean absolute error " + std::to_string(mean),
            .values = {{"mean_absolute_error", mean}},
            .rows = {{"mean absolute error", std::to_string(mean)}}};
  };
  const auto after_epoch = [&](const train::EpochReport& epoch) {
    // Lower is better; for an accuracy, pass its negative.
    epoch.save_if_best(folder + "/best.safetensors", epoch.test.values[0].second);
    if (epoch.epochs_since_best() >= 3) epoch.stop();
  };
  options.checkpoints.folder = folder;
  options.metrics = folder + "/metrics.jsonl";
  train::TrainingRun training(
      group,
      {.module = model.module(),
       .optimizer = optimizer,
       .gradients = train::backward_passes(loss, model),
       .make_loader =
           [&](std::uint64_t seed) {
             const data::DistributedSampler sampler(points->size(), group, {.seed = seed});
             return std::make_unique<data::DataLoader>(
                 points, sampler, data::DataLoaderOptions{.global_batch_size = 64});
           },
       .test = test,
       .after_epoch = after_epoch},
      options);
  return training.train();
}

int main(int argc, char** argv) {
  return train::run_guarded([&] {
    const std::string folder = argc > 1 ? argv[1] : "run";
    train::TrainingRunOptions options{.epochs = 30};
    for (int i = 2; i < argc; ++i) {
      if (argv[i] == std::string("--resume")) {
        options.checkpoints.resume = true;
      } else if (argv[i] == std::string("--epochs") && i + 1 < argc) {
        options.epochs = std::stol(argv[++i]);
      } else {
        throw std::invalid_argument(std::string("unknown option ") + argv[i]);
      }
    }
    return run(folder, options);
  });
}
