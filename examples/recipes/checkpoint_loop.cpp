// A training loop of your own with checkpoints. It continues where it was after a restart by the
// launcher, after Ctrl-C, and with another number of ranks:
//
//   paceline run --nproc-per-node 2 --max-restarts 3 checkpoint_loop FOLDER

#include <cmath>
#include <cstdio>
#include <string>

#include <torch/torch.h>

#include "paceline/paceline.h"

namespace data = paceline::data;
namespace optim = paceline::optim;
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
  const data::DistributedSampler sampler(points->size(), group->world_size(), group->rank());
  data::DataLoader loader(points, sampler, {.global_batch_size = 40});

  const torch::nn::Sequential net(torch::nn::Linear(2, 32), torch::nn::ReLU(),
                                  torch::nn::Linear(32, 2));
  paceline::DistributedDataParallel model(net, group);
  optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});

  // With `resume` a first start continues what it finds in the folder; without it, it refuses to.
  train::Checkpointer checkpointer(group, {.folder = folder, .keep = 2, .resume = true});
  train::TrainingState state{.seed = 1};
  if (const auto found = checkpointer.begin(model.module(), optimizer, state.seed)) {
    state = found->state;
    if (group->rank() == 0)
      std::printf("continues after step %ld\n", static_cast<long>(state.step));
  }
  paceline::AgreedStop stop;  // Ctrl-C, SIGTERM and SIGUSR1 end all ranks after the same step

  double loss_sum = 0;
  for (; state.epoch < kEpochs; ++state.epoch, state.consumed = 0) {
    loader.begin_epoch(state.epoch, state.consumed);
    while (const auto batch = loader.next()) {
      optimizer.zero_grad();
      const auto loss =
          torch::nn::functional::cross_entropy(model.forward(batch->data), batch->target);
      (loss * batch->weight).backward();
      optimizer.step();
      loss_sum = loss.item<double>();

      ++state.step;
      state.consumed = loader.consumed();
      if (state.step % 150 == 0) checkpointer.save(state, model.module(), optimizer);
      if (stop.requested(*group)) {
        checkpointer.save(state, model.module(), optimizer);
        return checkpointer.finish() ? paceline::kStoppedAsAgreed : 1;
      }
    }
  }
  checkpointer.save(state, model.module(), optimizer);
  if (!checkpointer.finish()) return 1;  // waits until the last checkpoint is on the disk

  double sum = 0;  // shows that an interrupted run ends with the same weights
  for (const auto& parameter : model.parameters()) sum += parameter.sum().item<double>();
  if (group->rank() == 0)
    std::printf("step %ld: loss %.6f, sum of the weights %.6f\n", static_cast<long>(state.step),
                loss_sum, sum);
}
