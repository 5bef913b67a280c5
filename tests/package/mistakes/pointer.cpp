// wanted: a pointer has no count: write std::span(pointer, count)
#include <paceline/paceline.h>

int main() {
  const auto group = paceline::init_process_group();
  float values[3] = {};
  float* pointer = values;
  group->broadcast(pointer, 0);
}
