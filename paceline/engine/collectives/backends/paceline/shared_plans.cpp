#include "paceline/engine/collectives/backends/paceline/shared_plans.h"

#include "paceline/engine/collectives/algorithms/in_shared_memory.h"

namespace paceline {

SharedPlan SharedPlans::make(const Collective& call) const {
  SharedPlan plan;
  plan.route = choose_route(terms_, {call.op, call.dtype, call.count});
  if (plan.route.way != SharedRoute::Way::kLarge) {
    const auto build = plan.route.is_one_shot ? build_staged_one_shot : build_staged;
    plan.staged =
        build({call.op, rank_, terms_.world_size, call.root, call.count, call.count, call.count});
  }
  return plan;
}

}  // namespace paceline
