// Several ranks meet and add up a number. Run it alone, or with several ranks:
//
//   paceline run --nproc-per-node 4 01_first_group

#include <cstdio>

#include "paceline/paceline.h"

int main() {
  const auto group = paceline::init_process_group();

  const int mine = group->rank() + 1;
  const int sum = paceline::all_reduce_value(group, mine);

  std::printf("rank %d of %d over %s: 1 + ... + %d = %d\n", group->rank(), group->world_size(),
              group->transport().c_str(), group->world_size(), sum);
}
