#pragma once

// What decides how a group carries out its collectives, as users choose it; all ranks the same but
// for `package` and `costs`.

#include <optional>

#include "paceline/engine/collectives/planning/algorithm.h"
#include "paceline/engine/collectives/planning/cost_model.h"

namespace paceline {

struct PlanningOptions {
  // The algorithm of all messages that it serves; the planner's choice when empty.
  std::optional<Algorithm> algorithm;
  // Also algorithms whose sums have other bits than the promised ones, where that is faster.
  bool allows_any_order = false;
  // Whether ranks on several packages (processor chips) of one machine add up large sums per
  // package first. The bits are the same either way, and whether it is faster has not been
  // measured: no machine with two packages was at hand.
  bool by_package = false;
  // Counts this rank to a package, numbered from 0, or to none that is known (negative); to the one
  // that all its processors are on when empty. For trying out packages on a machine of one.
  std::optional<int> package;
  // What the planner goes by, on rank 0. When empty a group takes the calibration (calibration.h),
  // and what has none the defaults of CostModel.
  std::optional<CostModel> costs;
};

}  // namespace paceline
