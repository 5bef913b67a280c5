#include "paceline/training/optim/sgd.h"

#include <algorithm>

#include "paceline/engine/core/check.h"
#include "paceline/training/optim/kernels.h"

namespace paceline::optim {
namespace {

std::vector<std::string> state_names(const std::vector<ParameterGroup<SgdOptions>>& groups) {
  const bool any =
      std::ranges::any_of(groups, [](const auto& group) { return group.options.momentum > 0; });
  return any ? std::vector<std::string>{"momentum_buffer"} : std::vector<std::string>{};
}

}  // namespace

Sgd::Sgd(const std::vector<ParameterGroup<SgdOptions>>& groups)
    : GroupedOptimizer(groups, state_names(groups)) {
  for (const auto& group : groups) Sgd::require_valid(group.options);
}

void Sgd::require_valid(const SgdOptions& options) const {
  check(options.momentum >= 0 && options.weight_decay >= 0,
        "sgd: momentum and weight_decay must not be negative");
  check(!options.nesterov || (options.momentum > 0 && options.dampening == 0),
        "sgd: nesterov needs a momentum above 0 and no dampening");
  check(options.momentum == 0 || has_state(),
        "sgd: a group with a momentum comes after groups without, which keep no state: make the "
        "optimizer with both");
}

void Sgd::update(const Slice& slice, const NormPair&) const {
  const SgdOptions& group = options(slice.group);
  SgdKernelArguments kernel;
  kernel.lr = static_cast<float>(learning_rate(slice.group));
  kernel.momentum = static_cast<float>(group.momentum);
  // A parameter's first step takes the whole gradient as its momentum.
  kernel.gradient_share = slice.step == 1 ? 1.0f : static_cast<float>(1 - group.dampening);
  kernel.weight_decay = static_cast<float>(group.weight_decay);
  kernel.nesterov = group.nesterov;
  sgd_kernel(kernel, slice.parameter, slice.gradient, group.momentum > 0 ? slice.state[0] : nullptr,
             slice.count, slice.sums);
}

}  // namespace paceline::optim
