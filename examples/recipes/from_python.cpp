// The same program as from_python.py, line by line:
//
//   paceline run --nproc-per-node 2 from_python
#include <cstdio>

#include <torch/torch.h>

#include "paceline/paceline.h"

int main() {
  const auto group = paceline::init_process_group();
  const int rank = group->rank();
  const auto inputs = torch::arange(0, 1000).reshape({1000, 1}) / 1000;
  const auto samples = std::make_shared<paceline::data::TensorDataset>(
      "squares", std::vector<at::Tensor>{inputs, inputs.square()});
  const paceline::data::DistributedSampler sampler(samples->size(), group, {.seed = 3});
  paceline::data::DataLoader loader(samples, sampler, {.batch_size = 25});

  torch::nn::Sequential net(torch::nn::Linear(1, 16), torch::nn::Tanh(), torch::nn::Linear(16, 1));
  for (auto& parameter : net->parameters()) torch::nn::init::constant_(parameter, 0.1);
  paceline::DistributedDataParallel model(net, group);
  paceline::optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});

  at::Tensor loss;
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (const auto& batch : loader.epoch(epoch)) {
      optimizer.zero_grad();
      loss = torch::mse_loss(model(batch.data), batch.target);
      loss.backward();
      optimizer.step();
    }
  }

  auto total = loss.detach();
  paceline::all_reduce(group, total);
  if (rank == 0) {
    std::printf("loss %.6f\n", total.item<double>() / group->world_size());
    torch::save(model.module_ptr(), "net.pt");
  }
}
