// wanted: fully_shard also needs the group and the optimizer
#include <paceline/paceline.h>

#include <torch/torch.h>

int main() {
  auto net = std::make_shared<torch::nn::LinearImpl>(2, 1);
  auto model = paceline::fully_shard(net, paceline::init_process_group(), {.stage = 2});
}
