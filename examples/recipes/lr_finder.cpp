// Finds a learning rate: raises the rate at each step until the loss explodes, then prints the rate
// at which the smoothed loss fell fastest. At the end it restores the weights.
//
//   paceline run --nproc-per-node 2 lr_finder

#include <cmath>
#include <cstdio>
#include <functional>

#include <torch/torch.h>

#include "paceline/paceline.h"

namespace data = paceline::data;
namespace optim = paceline::optim;

// `loss_of_batch` runs a forward pass. All ranks get the same answer.
double find_learning_rate(paceline::GroupRef group, data::DataLoader& loader,
                          const std::vector<at::Tensor>& parameters,
                          const std::function<at::Tensor(const data::Batch&)>& loss_of_batch) {
  std::vector<at::Tensor> before;
  for (const auto& parameter : parameters) before.push_back(parameter.detach().clone());
  // A separate optimizer, so that the program's own optimizer keeps its state.
  optim::SGD optimizer(parameters, {.lr = 1e-4});

  double smooth = 0, best = 0, fastest = 0, answer = 1e-4;
  int step = 0;
  auto epoch = loader.epoch(0);
  for (double rate = 1e-4; rate < 10; rate *= 1.15) {
    auto batch = epoch.next();
    if (!batch) {
      epoch = loader.epoch(step);
      batch = epoch.next();
    }
    optimizer.set_learning_rate(rate);
    optimizer.zero_grad();
    const auto loss = loss_of_batch(*batch);
    loss.backward();
    optimizer.step();
    const double mean =
        paceline::all_reduce_value(group, loss.item<double>()) / group->world_size();
    const double now = step == 0 ? mean : 0.8 * smooth + 0.2 * mean;
    if (step > 0 && smooth - now > fastest) fastest = smooth - now, answer = rate;
    if (step == 0 || now < best) best = now;
    if (!std::isfinite(mean) || now > 4 * best) break;
    smooth = now;
    ++step;
  }
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].copy_(before[i]);
  optimizer.zero_grad();
  return answer;
}

int main() {
  const auto group = paceline::init_process_group();
  torch::manual_seed(1);
  const auto points = torch::rand({2000, 2}) * 2 - 1;
  const auto inside = (points.square().sum(1) < 1).to(torch::kLong);
  const auto samples =
      std::make_shared<data::TensorDataset>("points", std::vector<at::Tensor>{points, inside});
  const data::DistributedSampler sampler(samples->size(), group);
  data::DataLoader loader(samples, sampler, {.batch_size = 25});
  paceline::DistributedDataParallel model(
      torch::nn::Sequential(torch::nn::Linear(2, 32), torch::nn::ReLU(), torch::nn::Linear(32, 2)),
      group);
  const double rate =
      find_learning_rate(group, loader, model.parameters(), [&](const data::Batch& batch) {
        return torch::nn::functional::cross_entropy(model.forward(batch.data), batch.target);
      });
  if (group->rank() == 0) std::printf("learning rate %.4f\n", rate);
}
