// wanted: give it the functions std::map<std::string, std::string> state() const and set_state(
#include <paceline/paceline.h>

#include <torch/torch.h>

struct Warmup : torch::optim::LRScheduler {
  using torch::optim::LRScheduler::LRScheduler;
  std::vector<double> get_lrs() override { return {1e-3 * step_count_}; }
};

int main() {
  torch::nn::Linear net(2, 1);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  Warmup schedule(optimizer);
  paceline::train::Checkpointer checkpointer(paceline::init_process_group(), {.folder = "run"});
  checkpointer.attach("schedule", schedule);
}
