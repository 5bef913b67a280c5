// wanted: attach() takes the part itself, not its address: write attach(name, part)
#include <paceline/paceline.h>

#include <torch/torch.h>

int main() {
  torch::nn::Linear net(2, 1);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  paceline::train::Checkpointer checkpointer(paceline::init_process_group(), {.folder = "run"});
  checkpointer.attach("optimizer", &optimizer);
}
