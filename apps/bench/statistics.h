#pragma once

// Medians and percentiles of measured times. Requires, everywhere: at least one value.

#include <vector>

namespace paceline::bench {

// The middle value, or the mean of the two middle ones.
double median(std::vector<double> values);

// The smallest value that at least `percent` of the values do not exceed (nearest rank).
double percentile(std::vector<double> values, double percent);

struct Spread {
  double median = 0, min = 0, max = 0;
  bool operator==(const Spread&) const = default;
};
Spread spread_of(const std::vector<double>& values);

// a[i] / b[i]. Requires: as many of each.
std::vector<double> ratios(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace paceline::bench
