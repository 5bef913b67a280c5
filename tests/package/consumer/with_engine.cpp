#include <cstdio>

#include <paceline/engine.h>

int main() {
  const auto group = paceline::init_process_group();
  std::printf("sum %d\n", paceline::all_reduce_value(group, 41) + 1);
}
