// wanted: keep the elements in a variable `values` and write std::span(values)
#include <vector>

#include <paceline/paceline.h>

int main() {
  const auto group = paceline::init_process_group();
  group->all_reduce(std::vector<float>(3));
}
