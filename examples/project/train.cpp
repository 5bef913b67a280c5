#include <cstdio>

#include <paceline/paceline.h>

#include <torch/torch.h>

int main() {
  const auto group = paceline::init_process_group();
  torch::manual_seed(group->rank());
  paceline::DistributedDataParallel model(torch::nn::Linear(1, 1), group);
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  for (int step = 0; step < 200; ++step) {
    const auto x = torch::rand({16, 1});
    optimizer.zero_grad();
    torch::mse_loss(model.forward(x), 3 * x + 1).backward();
    optimizer.step();
  }
  if (group->rank() == 0)
    std::printf("y = %.2f x + %.2f\n", model.parameters()[0].item<double>(),
                model.parameters()[1].item<double>());
}
