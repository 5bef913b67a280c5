#pragma once

// Layouts of hosts of every kind, for tests of the hierarchy.

#include <vector>

#include "paceline/engine/collectives/algorithms/schedule.h"

namespace paceline {

struct HostLayout {
  const char* name;
  std::vector<int> host_of;
};

inline std::vector<HostLayout> host_layouts() {
  const auto in_blocks = [](int num_hosts, int ranks) {
    return Hosts::blocks(num_hosts, ranks).host_of;
  };
  return {
      {"two_hosts_of_two", in_blocks(2, 2)},
      {"two_hosts_of_three", in_blocks(2, 3)},
      {"three_hosts_of_four", in_blocks(3, 4)},
      {"five_hosts_of_two", in_blocks(5, 2)},
      {"six_hosts_of_one", in_blocks(6, 1)},
      {"eight_hosts_of_two", in_blocks(8, 2)},
      {"dealt_out_in_turn", {0, 1, 0, 1, 0, 1}},
      {"unequal", {0, 0, 0, 0, 0, 1, 1, 2}},
      {"unequal_and_mixed", {2, 0, 0, 1, 2, 2, 1, 0, 0, 0, 1}},
      {"one_host", in_blocks(1, 5)},
  };
}

}  // namespace paceline
