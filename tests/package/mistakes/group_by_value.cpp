// wanted: give it the pointer of paceline::init_process_group(), not *group
#include <paceline/paceline.h>

#include <torch/torch.h>

int main() {
  const auto group = paceline::init_process_group();
  const auto net = std::make_shared<torch::nn::LinearImpl>(2, 1);
  paceline::DistributedDataParallel model(net, *group);
}
