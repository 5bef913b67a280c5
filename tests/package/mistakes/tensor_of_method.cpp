// wanted: for a tensor write all_reduce(group, tensor)
#include <paceline/paceline.h>

#include <torch/torch.h>

int main() {
  const auto group = paceline::init_process_group();
  auto tensor = torch::ones({2});
  group->all_reduce(tensor);
}
