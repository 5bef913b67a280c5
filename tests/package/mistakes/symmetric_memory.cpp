// wanted: write memory.as<float>() for symmetric memory of floats
#include <paceline/paceline.h>

int main() {
  const auto group = paceline::init_process_group();
  group->all_reduce(group->allocate_symmetric(64));
}
