// wanted: a part has a name in the checkpoint: write attach("model", model)
#include <paceline/paceline.h>

#include <torch/torch.h>

int main() {
  torch::nn::Linear net(2, 1);
  paceline::train::Checkpointer checkpointer(paceline::init_process_group(), {.folder = "run"});
  checkpointer.attach(net);
}
