#pragma once

// Times of what is done several times: the median does not see what else the machine did meanwhile.

#include <algorithm>
#include <chrono>
#include <vector>

namespace paceline::train {

// Requires: a value.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace paceline::train
