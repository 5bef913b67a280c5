// wanted: an element is a float, double, bool, signed integer, std::uint8_t or std::byte
#include <span>
#include <vector>

#include <paceline/paceline.h>

int main() {
  const auto group = paceline::init_process_group();
  std::vector<unsigned> values(3);
  group->all_reduce(std::span(values));
}
