// wanted: write std::span(values) instead of values
#include <vector>

#include <paceline/paceline.h>

int main() {
  const auto group = paceline::init_process_group();
  std::vector<float> values(3);
  group->all_reduce(values);
}
