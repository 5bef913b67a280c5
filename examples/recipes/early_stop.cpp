// The best weights and an early stop in a training loop of your own: training ends when the
// evaluation has not improved for three epochs, and the file has the weights of the best epoch. The
// best value and the number of epochs since the best epoch are saved with the run, so that they
// survive a restart.
//
//   paceline run --nproc-per-node 2 early_stop FOLDER

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <string>

#include <torch/torch.h>

#include "paceline/paceline.h"

namespace data = paceline::data;
namespace train = paceline::train;

constexpr int kEpochs = 100, kPatience = 3;

// Points, and for each one whether it lies inside the unit circle.
std::shared_ptr<data::TensorDataset> make_points(std::int64_t count) {
  const auto points = torch::rand({count, 2}) * 2 - 1;
  const auto inside = (points.square().sum(1) < 1).to(torch::kLong);
  return std::make_shared<data::TensorDataset>("points", std::vector<at::Tensor>{points, inside});
}

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "run";
  const auto group = paceline::init_process_group();
  torch::manual_seed(1);  // every rank makes the same points
  const auto points = make_points(400), unseen = make_points(400);
  data::DataLoader loader(points, data::DistributedSampler(points->size(), group),
                          {.global_batch_size = 40});
  data::DataLoader test_loader(unseen, data::evaluation_indices(unseen->size(), group),
                               {.batch_size = 100});

  const torch::nn::Sequential net(torch::nn::Linear(2, 32), torch::nn::ReLU(),
                                  torch::nn::Linear(32, 2));
  paceline::DistributedDataParallel model(net, group);
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(3e-2));

  double best_loss = std::numeric_limits<double>::infinity();
  std::int64_t epochs_since_best = 0;
  train::Checkpointer checkpointer(group, {.folder = folder, .keep = 2, .resume = true});
  checkpointer.attach("model", model);
  checkpointer.attach("optimizer", optimizer);
  checkpointer.attach("data", loader);
  checkpointer.attach("best loss", best_loss);
  checkpointer.attach("epochs since best", epochs_since_best);
  std::int64_t step = checkpointer.begin();

  auto epoch = loader.position().epoch;
  for (; epoch < kEpochs && epochs_since_best < kPatience; ++epoch) {
    for (const data::Batch& batch : loader.epoch(epoch)) {
      optimizer.zero_grad();
      const auto loss =
          torch::nn::functional::cross_entropy(model.forward(batch.data), batch.target);
      batch.weighted(loss).backward();
      optimizer.step();
      ++step;
    }
    // Every rank gets the same result, so all ranks make the same decisions.
    model.eval();
    const train::Evaluation found =
        train::evaluate(group, test_loader, [&](const at::Tensor& x) { return model.forward(x); });
    model.train();
    ++epochs_since_best;
    if (found.loss < best_loss) {
      best_loss = found.loss;
      epochs_since_best = 0;
      if (group->rank() == 0)
        paceline::write_weights(folder + "/best.safetensors", paceline::weights_of(*net));
    }
    checkpointer.save(step);
  }
  if (!checkpointer.finish()) return 1;
  if (group->rank() == 0)
    std::printf("stopped after epoch %ld: best loss %.4f\n", static_cast<long>(epoch), best_loss);
}
