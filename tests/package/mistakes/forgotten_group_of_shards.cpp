// wanted: fully_shard also needs the group and the optimizer
#include <paceline/paceline.h>

#include <torch/torch.h>

int main() {
  torch::nn::Linear net(2, 1);
  paceline::optim::Adam optimizer(net->parameters());
  auto model = paceline::fully_shard(net, optimizer);
}
