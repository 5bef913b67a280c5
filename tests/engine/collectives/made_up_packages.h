#pragma once

// Groups on one machine whose ranks are declared to be on several packages.

#include <string>
#include <vector>

#include "tests/harness/thread_ranks.h"

namespace paceline {

// Each rank's package; negative: not known.
inline harness::RanksOptions on_packages(const std::vector<int>& package_of,
                                         bool by_package = true) {
  harness::RanksOptions options;
  options.adjust = [=](int rank, GroupOptions& group) {
    group.planning.package = package_of[static_cast<std::size_t>(rank)];
    group.planning.by_package = by_package;
  };
  return options;
}

// Whether a large sum is made that way.
inline bool is_by_package(const ProcessGroup& group) {
  const auto way = group.explain(Op::kAllReduce, Dtype::kFloat32, 1 << 20);
  return way.find("memory: by_package") != std::string::npos;
}

inline const std::vector<int> kTwoOfTwo = {0, 0, 1, 1};
inline const std::vector<int> kTwoOfFour = {0, 0, 0, 0, 1, 1, 1, 1};
inline const std::vector<int> kThreeOfTwo = {0, 0, 1, 1, 2, 2};

}  // namespace paceline
