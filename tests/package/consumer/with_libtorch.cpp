#include <cstdio>

#include <paceline/paceline.h>

#include <torch/torch.h>

int main() {
  const auto group = paceline::init_process_group();
  paceline::DistributedDataParallel model(std::make_shared<torch::nn::LinearImpl>(2, 1), group);
  model.forward(torch::ones({1, 2})).sum().backward();
  std::printf("gradient %.0f\n", model.module().weight.grad().sum().item<double>());
}
