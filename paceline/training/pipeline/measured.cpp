// Measured actions of all ranks, as rows of numbers.

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/median.h"
#include "paceline/training/pipeline/pipeline.h"
#include "paceline/training/tensor/collectives.h"

namespace paceline {
namespace {

constexpr std::int64_t kColumns = 5;  // kind, stage, micro-batch, begin, end

}  // namespace

pipeline::TimedPlan measured(ProcessGroup& group, const PipelineStep& step) {
  const auto rows = static_cast<std::int64_t>(step.actions.size());
  const at::Tensor own = at::empty({rows, kColumns}, at::kDouble);
  double* next = own.data_ptr<double>();
  for (const auto& [action, begin, end] : step.actions) {
    for (const double value : {static_cast<double>(action.kind), static_cast<double>(action.stage),
                               static_cast<double>(action.micro_batch), begin, end})
      *next++ = value;
  }
  const at::Tensor counts = all_gather_into_tensor(group, at::full({1}, rows, at::kLong));
  const std::int64_t* const count = counts.data_ptr<std::int64_t>();
  const at::Tensor all = all_gather_v(group, own, {count, count + group.world_size()});
  const double* value = all.data_ptr<double>();
  pipeline::TimedPlan result;
  for (int rank = 0; rank < group.world_size(); ++rank) {
    auto& actions = result.ranks.emplace_back();
    double busy = 0;
    for (std::int64_t i = 0; i < count[rank]; ++i, value += kColumns) {
      actions.push_back({{static_cast<pipeline::ActionKind>(value[0]), static_cast<int>(value[1]),
                          static_cast<int>(value[2])},
                         value[3],
                         value[4]});
      busy += value[4] - value[3];
      result.seconds = std::max(result.seconds, value[4]);
    }
    result.busy_s.push_back(busy);
  }
  return result;
}

pipeline::Costs measured_costs(ProcessGroup& group, const PipelineStep& step,
                               pipeline::Costs base) {
  std::map<std::pair<int, pipeline::ActionKind>, std::vector<double>> times;
  for (const auto& rank : measured(group, step).ranks) {
    for (const auto& [action, begin, end] : rank)
      times[{action.stage, action.kind}].push_back(end - begin);
  }
  for (const auto& [key, values] : times) {
    const auto& [stage, kind] = key;
    check(static_cast<std::size_t>(stage) < base.stages.size(),
          "costs of {} stages for a step with stage {}", base.stages.size(), stage);
    pipeline::StageCosts& costs = base.stages[static_cast<std::size_t>(stage)];
    const double time = median(values);
    switch (kind) {
      case pipeline::ActionKind::kForward:
        costs.forward_s = time;
        break;
      case pipeline::ActionKind::kBackward:
        costs.backward_s = time;
        break;
      case pipeline::ActionKind::kInputGradient:
        costs.input_gradient_s = time;
        break;
      case pipeline::ActionKind::kWeightGradient:
        costs.weight_gradient_s = time;
        break;
    }
  }
  return base;
}

}  // namespace paceline
