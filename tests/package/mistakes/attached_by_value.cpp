// wanted: give it std::make_shared<Net>() or a holder (TORCH_MODULE), not the module itself
#include <paceline/paceline.h>

#include <torch/torch.h>

int main() {
  torch::nn::LinearImpl net(2, 1);
  paceline::train::Checkpointer checkpointer(paceline::init_process_group(), {.folder = "run"});
  checkpointer.attach("model", net);
}
