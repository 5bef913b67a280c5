#pragma once

// The middle one of some values: of times it does not see what else the machine did meanwhile.

#include <algorithm>
#include <cstddef>
#include <vector>

namespace paceline {

// The upper one of an even number. Requires: a value.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace paceline
