#pragma once

// Groups on one machine whose ranks are declared to be on several sockets.

#include <string>
#include <vector>

#include "tests/harness/thread_ranks.h"

namespace paceline {

// Each rank's socket; negative: not known.
inline harness::ThreadRanksOptions on_sockets(const std::vector<int>& socket_of, BySocket choice) {
  harness::ThreadRanksOptions options;
  options.adjust = [=](int rank, GroupOptions& group) {
    group.socket = socket_of[static_cast<std::size_t>(rank)];
    group.by_socket = choice;
  };
  return options;
}

// Whether a large sum is made that way.
inline bool is_by_socket(const ProcessGroup& group) {
  const auto way = group.explain(Op::kAllReduce, Dtype::kFloat32, 1 << 20);
  return way.find("memory: by_socket") != std::string::npos;
}

inline const std::vector<int> kTwoOfTwo = {0, 0, 1, 1};
inline const std::vector<int> kTwoOfFour = {0, 0, 0, 0, 1, 1, 1, 1};
inline const std::vector<int> kThreeOfTwo = {0, 0, 1, 1, 2, 2};

}  // namespace paceline
