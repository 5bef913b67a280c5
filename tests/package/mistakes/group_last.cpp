// wanted: the group comes first: write broadcast(group, tensor, root)
#include <paceline/paceline.h>

#include <torch/torch.h>

int main() {
  const auto group = paceline::init_process_group();
  const auto weights = torch::ones({2});
  paceline::broadcast(weights, 0, group);
}
