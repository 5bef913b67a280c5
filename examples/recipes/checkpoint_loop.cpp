// A training loop of your own with checkpoints. It continues where it stopped, after a restart by
// the launcher or after Ctrl-C, also with another number of ranks:
//
//   paceline run --nproc-per-node 2 --max-restarts 3 checkpoint_loop FOLDER

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>

#include <torch/torch.h>

#include "paceline/paceline.h"

namespace data = paceline::data;
namespace train = paceline::train;

constexpr int kEpochs = 20;

// Points, and for each one whether it lies inside the unit circle.
std::shared_ptr<data::TensorDataset> make_points() {
  const auto points = torch::rand({2000, 2}) * 2 - 1;
  const auto inside = (points.square().sum(1) < 1).to(torch::kLong);
  return std::make_shared<data::TensorDataset>("points", std::vector<at::Tensor>{points, inside});
}

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "run";
  const auto group = paceline::init_process_group();
  torch::manual_seed(1);  // every rank makes the same points
  const auto points = make_points();
  const data::DistributedSampler sampler(points->size(), group);
  data::DataLoader loader(points, sampler, {.global_batch_size = 40});

  const torch::nn::Sequential net(torch::nn::Linear(2, 32), torch::nn::ReLU(),
                                  torch::nn::Linear(32, 2));
  paceline::DistributedDataParallel model(net, group);
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-2));
  double best_loss = std::numeric_limits<double>::infinity();

  // With `resume`, begin() continues the run that it finds in the folder at a first start; without
  // `resume`, a run in the folder is an error.
  train::Checkpointer checkpointer(group, {.folder = folder, .keep = 2, .resume = true});
  checkpointer.attach("model", model);
  checkpointer.attach("optimizer", optimizer);
  checkpointer.attach("data", loader);
  checkpointer.attach("best loss", best_loss);
  std::int64_t step = checkpointer.begin();
  if (step > 0 && group->rank() == 0)
    std::printf("continues after step %ld\n", static_cast<long>(step));
  paceline::AgreedStop stop;  // Ctrl-C, SIGTERM and SIGUSR1 end all ranks after the same step

  for (std::int64_t epoch = loader.position().epoch; epoch < kEpochs; ++epoch) {
    for (const data::Batch& batch : loader.epoch(epoch)) {
      optimizer.zero_grad();
      const auto loss =
          torch::nn::functional::cross_entropy(model.forward(batch.data), batch.target);
      batch.weighted(loss).backward();
      optimizer.step();
      const double mean = paceline::all_reduce_value(group, batch.weighted(loss).item<double>());
      best_loss = std::min(best_loss, mean / group->world_size());

      if (++step % 150 == 0) checkpointer.save(step);
      if (stop.requested(group)) {
        checkpointer.save(step);
        return checkpointer.finish() ? paceline::kStoppedAsAgreed : 1;
      }
    }
  }
  checkpointer.save(step);
  if (!checkpointer.finish()) return 1;  // waits until the last checkpoint is on the disk

  double sum = 0;  // shows that an interrupted run ends with the same weights
  for (const auto& parameter : model.parameters()) sum += parameter.sum().item<double>();
  if (group->rank() == 0)
    std::printf("step %ld: best loss %.6f, sum of the weights %.6f\n", static_cast<long>(step),
                best_loss, sum);
}
