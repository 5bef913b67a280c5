#include "paceline/schedules/split_by_cost.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "paceline/core/check.h"

namespace paceline::pipeline {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// The cut of layers into stages that makes `total` of its stages' values smallest: the number of
// layers of each stage. `value` is of a stage's cost.
std::vector<int> best_cut(const std::vector<double>& sums, int num_stages,
                          const std::function<double(double cost)>& value,
                          const std::function<double(double, double)>& total) {
  const std::size_t layers = sums.size() - 1;
  const auto stages = static_cast<std::size_t>(num_stages);
  // [stage][layer]: of the first layers in so many stages.
  std::vector<std::vector<double>> best(stages + 1, std::vector<double>(layers + 1, kNever));
  std::vector<std::vector<std::size_t>> begin(stages + 1, std::vector<std::size_t>(layers + 1));
  best[0][0] = 0;
  for (std::size_t stage = 1; stage <= stages; ++stage) {
    for (std::size_t end = stage; end <= layers; ++end) {
      for (std::size_t from = stage - 1; from < end; ++from) {
        const double all = total(best[stage - 1][from], value(sums[end] - sums[from]));
        if (all >= best[stage][end]) continue;
        best[stage][end] = all;
        begin[stage][end] = from;
      }
    }
  }
  std::vector<int> counts(stages);
  std::size_t end = layers;
  for (std::size_t stage = stages; stage > 0; --stage) {
    const std::size_t from = begin[stage][end];
    counts[stage - 1] = static_cast<int>(end - from);
    end = from;
  }
  return counts;
}

}  // namespace

std::vector<int> split_by_cost(const std::vector<double>& costs, int num_stages) {
  check(num_stages >= 1, "split_by_cost: {} stages", num_stages);
  check(costs.size() >= static_cast<std::size_t>(num_stages),
        "split_by_cost: {} layers are too few for {} stages", costs.size(), num_stages);
  std::vector<double> sums{0};  // of the layers before
  for (std::size_t i = 0; i < costs.size(); ++i) {
    check(std::isfinite(costs[i]) && costs[i] >= 0, "split_by_cost: the cost of layer {} is {}", i,
          costs[i]);
    sums.push_back(sums.back() + costs[i]);
  }
  const auto least = best_cut(
      sums, num_stages, [](double cost) { return cost; },
      [](double a, double b) { return std::max(a, b); });
  double most = 0;
  std::size_t layer = 0;
  for (const int count : least) {
    const auto end = layer + static_cast<std::size_t>(count);
    most = std::max(most, sums[end] - sums[layer]);
    layer = end;
  }
  return best_cut(
      sums, num_stages, [most](double cost) { return cost > most ? kNever : cost * cost; },
      [](double a, double b) { return a + b; });
}

}  // namespace paceline::pipeline
