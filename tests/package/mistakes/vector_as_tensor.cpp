// wanted: this is not a tensor: write group->all_reduce(std::span(values)) for other memory
#include <vector>

#include <paceline/paceline.h>

int main() {
  const auto group = paceline::init_process_group();
  std::vector<float> values(3);
  paceline::all_reduce(group, values);
}
