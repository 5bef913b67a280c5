// Gradient accumulation: steps of 128 samples on any number of ranks. A rank computes at most 16
// samples at once. The result does not depend on the number of ranks, up to rounding:
//
//   paceline run --nproc-per-node 2 accumulation
//   paceline run --nproc-per-node 3 accumulation

#include <cstdio>

#include <torch/torch.h>

#include "paceline/paceline.h"

namespace data = paceline::data;

int main() {
  const auto group = paceline::init_process_group();
  torch::manual_seed(1);
  const auto inputs = torch::rand({1000, 8});
  const auto targets = inputs.square().sum(1, /*keepdim=*/true);
  const auto samples =
      std::make_shared<data::TensorDataset>("squares", std::vector<at::Tensor>{inputs, targets});
  const data::DistributedSampler sampler(samples->size(), group);
  data::DataLoader loader(samples, sampler, {.global_batch_size = 128, .micro_batch_size = 16});

  paceline::DistributedDataParallel model(
      torch::nn::Sequential(torch::nn::Linear(8, 32), torch::nn::ReLU(), torch::nn::Linear(32, 1)),
      group);
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.05));
  double error = 0;
  for (int epoch = 0; epoch < 5; ++epoch) {
    error = 0;
    for (const data::Batch& batch : loader.epoch(epoch)) {
      // Gradients are averaged only in the last pass of a step. The ranks' shares of a step may
      // differ by a sample; weighted() corrects the mean for that.
      model.set_requires_gradient_sync(batch.ends_step);
      const auto loss = batch.weighted(torch::mse_loss(model.forward(batch.data), batch.target));
      loss.backward();
      error += loss.item<double>();
      if (!batch.ends_step) continue;
      optimizer.step();
      optimizer.zero_grad();
    }
    error = paceline::all_reduce_value(group, error) / group->world_size();
  }
  if (group->rank() == 0) std::printf("mean error per step %.5f\n", error / loader.num_batches());
}
