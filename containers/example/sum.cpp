// Ranks that meet and add up their numbers, wherever each of them is. With any argument they go on
// adding until they are asked to stop.

#include <cstdio>
#include <vector>

#include <unistd.h>

#include "paceline/engine.h"

int main(int argc, char**) {
  const auto group = paceline::init_process_group();
  std::vector<float> values(1 << 20, static_cast<float>(group->rank() + 1));
  group->all_reduce(std::span(values));
  std::printf("rank %d of %d over %s, user %d: %g\n", group->rank(), group->world_size(),
              group->transport().c_str(), static_cast<int>(getuid()),
              static_cast<double>(values.front()));
  std::fflush(stdout);
  if (argc == 1) return 0;
  paceline::AgreedStop stop;
  while (!stop.requested(*group)) group->all_reduce(std::span(values));
  return paceline::kStoppedAsAgreed;
}
