// wanted: write std::span(&value, 1) for a single value, or all_reduce_value(group, value)
#include <paceline/paceline.h>

int main() {
  const auto group = paceline::init_process_group();
  double loss = 0.5;
  group->all_reduce(loss);
}
