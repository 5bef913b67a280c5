#pragma once

// A measurement as benchmarks here report it: the median and the range of several rounds.

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace paceline::benchmarks {

// Requires: at least one value.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto middle = values.size() / 2;
  if (values.size() % 2 == 1) return values[middle];
  return (values[middle - 1] + values[middle]) / 2;
}

// "2.41 [2.20, 2.63]"
inline std::string with_spread(const std::vector<double>& values) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return fmt::format("{:.2f} [{:.2f}, {:.2f}]", median(values), *least, *most);
}

}  // namespace paceline::benchmarks
