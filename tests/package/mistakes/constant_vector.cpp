// wanted: the operation writes to this argument, so it must not be const
#include <vector>

#include <paceline/paceline.h>

int main() {
  const auto group = paceline::init_process_group();
  const std::vector<float> values(3);
  group->all_reduce(values);
}
