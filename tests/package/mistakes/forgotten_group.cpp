// wanted: the group is missing: write DistributedDataParallel model(module, group)
#include <paceline/paceline.h>

#include <torch/torch.h>

int main() {
  paceline::DistributedDataParallel model(std::make_shared<torch::nn::LinearImpl>(2, 1));
}
