// wanted: write std::span(values) instead of values
#include <string>

#include <paceline/paceline.h>

int main() {
  const auto group = paceline::init_process_group();
  std::string text = "a text";
  group->broadcast(text, 0);
}
