// wanted: an element is a float, double, bool, signed integer, std::uint8_t or std::byte
#include <string>
#include <vector>

#include <paceline/paceline.h>

int main() {
  const auto group = paceline::init_process_group();
  std::vector<std::string> words(3);
  group->broadcast(words, 0);
}
