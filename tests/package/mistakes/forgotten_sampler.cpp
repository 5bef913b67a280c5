// wanted: data::DistributedSampler(dataset->size(), group), {.batch_size = 32}
#include <paceline/paceline.h>

#include <torch/torch.h>

int main() {
  const auto group = paceline::init_process_group();
  const auto dataset = std::make_shared<paceline::data::TensorDataset>(
      "ones", std::vector{torch::ones({8, 2}), torch::ones({8, 1})});
  paceline::data::DataLoader loader(dataset, {.batch_size = 2});
}
