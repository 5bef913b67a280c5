#pragma once

// The form in which benchmarks report a measurement: the median and the range of several rounds.

#include <string>
#include <vector>

#include <fmt/format.h>

#include "apps/bench/report.h"

namespace paceline::benchmarks {

// "2.41 [2.20, 2.63]". Requires: at least one value.
inline std::string with_spread(const std::vector<double>& values) {
  const bench::Spread spread = bench::spread_of(values);
  return fmt::format("{:.2f} [{:.2f}, {:.2f}]", spread.median, spread.min, spread.max);
}

}  // namespace paceline::benchmarks
