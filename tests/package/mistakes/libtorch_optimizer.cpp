// wanted: write paceline::optim::Adam instead of torch::optim::Adam
#include <paceline/paceline.h>

#include <torch/torch.h>

int main() {
  auto net = std::make_shared<torch::nn::LinearImpl>(2, 1);
  torch::optim::Adam optimizer(net->parameters(), 1e-3);
  auto model = paceline::fully_shard(net, paceline::init_process_group(), optimizer);
}
