// wanted: std::make_shared<data::TensorDataset>("name", std::vector{inputs, targets})
#include <paceline/paceline.h>

#include <torch/torch.h>

int main() {
  const auto group = paceline::init_process_group();
  const std::vector<torch::Tensor> tensors = {torch::ones({8, 2}), torch::ones({8, 1})};
  paceline::data::DistributedSampler sampler(8, group);
  paceline::data::DataLoader loader(tensors, sampler, {.batch_size = 2});
}
