#include "paceline/planning/forecast/goodput.h"

#include <cmath>

namespace paceline::planning {
namespace {

// P(X <= x) of the normal distribution, solved for x by bisection.
double normal_quantile(double share) {
  double below = -10, above = 10;
  for (int i = 0; i < 80; ++i) {
    const double middle = (below + above) / 2;
    (std::erfc(-middle / std::sqrt(2.0)) / 2 < share ? below : above) = middle;
  }
  return (below + above) / 2;
}

}  // namespace

double best_interval(const FailureCosts& costs) {
  const auto& [mtbf, checkpoint, restart] = costs;
  if (checkpoint >= 2 * mtbf) return mtbf;
  const double ratio = checkpoint / (2 * mtbf);
  return std::sqrt(2 * checkpoint * mtbf) * (1 + std::sqrt(ratio) / 3 + ratio / 9) - checkpoint;
}

double goodput(const FailureCosts& costs, double interval_s) {
  const auto& [mtbf, checkpoint, restart] = costs;
  if (mtbf <= 0) return interval_s / (interval_s + checkpoint);
  return interval_s /
         (mtbf * std::exp(restart / mtbf) * std::expm1((interval_s + checkpoint) / mtbf));
}

double slowest_of(int ranks) {
  if (ranks <= 1) return 0;
  return normal_quantile((ranks - 0.375) / (ranks + 0.25));
}

}  // namespace paceline::planning
