#include "paceline/planning/schedules/simulate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "paceline/engine/core/check.h"
#include "paceline/planning/schedules/plan_clock.h"
#include "paceline/planning/schedules/validate.h"

namespace paceline::pipeline {

Costs equal_costs(int num_stages, const StageCosts& each) {
  return {std::vector<StageCosts>(static_cast<std::size_t>(std::max(num_stages, 0)), each)};
}

double TimedPlan::bubble_share() const {
  if (ranks.empty() || seconds <= 0) return 0;
  const double busy = std::accumulate(busy_s.begin(), busy_s.end(), 0.0);
  return 1 - busy / (seconds * static_cast<double>(ranks.size()));
}

void require_costs(const Costs& costs, int num_stages) {
  check(costs.stages.size() == static_cast<std::size_t>(num_stages),
        "costs of {} stages for a pipeline of {}", costs.stages.size(), num_stages);
  for (std::size_t stage = 0; stage < costs.stages.size(); ++stage) {
    const StageCosts& each = costs.stages[stage];
    for (const double value : {each.forward_s, each.input_gradient_s, each.weight_gradient_s,
                               each.backward_s.value_or(0), each.activation_bytes,
                               each.deferred_bytes, each.transfer_s}) {
      check(std::isfinite(value) && value >= 0,
            "stage {} has a cost of {}; times and sizes are finite and not negative", stage, value);
    }
  }
}

TimedPlan simulate(const Plan& plan, const Costs& costs) {
  validate(plan);
  require_costs(costs, plan.num_stages());
  PlanClock clock(plan.rank_of_stage, plan.num_micro_batches, costs);
  clock.run(plan.ranks);
  return {clock.timed(plan.ranks), clock.seconds(), clock.busy_s(), clock.peak_bytes()};
}

std::string describe(const Plan& plan, const TimedPlan& timed) {
  std::string text = fmt::format("{}: {:.4g} s, bubble {:.1f}%", plan.name, timed.seconds,
                                 100 * timed.bubble_share());
  if (!timed.peak_bytes.empty()) {
    const auto most = std::max_element(timed.peak_bytes.begin(), timed.peak_bytes.end());
    text += fmt::format(", peak memory {:.4g} bytes on rank {}", *most,
                        most - timed.peak_bytes.begin());
  }
  return text;
}

}  // namespace paceline::pipeline
