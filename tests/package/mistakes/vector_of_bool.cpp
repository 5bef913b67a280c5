// wanted: std::vector<bool> has bits: use std::vector<std::uint8_t> instead
#include <vector>

#include <paceline/paceline.h>

int main() {
  const auto group = paceline::init_process_group();
  std::vector<bool> flags(3);
  group->all_reduce(flags);
}
