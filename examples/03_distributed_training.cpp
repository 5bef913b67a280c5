// The same training loop twice: 02_plain_training.cpp in one process, 03_distributed_training.cpp
// on any number of ranks (paceline run --nproc-per-node 2 03_distributed_training).

#include <cstdio>

#include <torch/torch.h>

#include "paceline/paceline.h"

namespace data = paceline::data;

int main() {
  const auto group = paceline::init_process_group();
  torch::manual_seed(group->rank());
  const auto dataset = std::make_shared<data::ImageSamples>(
      data::load_fashion_mnist(data::ImageDataset::kFashionMnistFolder, data::Split::kTest));
  const data::DistributedSampler sampler(dataset->size(), group);
  data::DataLoader loader(dataset, sampler, {.batch_size = 64});

  paceline::DistributedDataParallel model(std::make_shared<paceline::models::MnistNetImpl>(),
                                          group);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));

  for (int epoch = 0; epoch < 1; ++epoch) {
    double loss_sum = 0;
    for (const data::Batch& batch : loader.epoch(epoch)) {
      optimizer.zero_grad();
      const auto loss =
          torch::nn::functional::cross_entropy(model->forward(batch.data), batch.target);
      loss.backward();
      optimizer.step();
      loss_sum += loss.item<double>();
    }
    if (group->rank() == 0)
      std::printf("epoch %d: mean loss %.4f\n", epoch,
                  loss_sum / static_cast<double>(loader.num_batches()));
  }
}
