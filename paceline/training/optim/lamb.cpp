#include "paceline/training/optim/lamb.h"

#include <array>
#include <cmath>

#include "paceline/engine/core/check.h"
#include "paceline/training/optim/block_kernels.h"
#include "paceline/training/optim/kernels.h"

namespace paceline::optim {
namespace {

LambKernelArguments arguments(const LambOptions& options, std::int64_t step) {
  const double steps = static_cast<double>(step);
  LambKernelArguments result;
  result.beta1 = static_cast<float>(options.beta1);
  result.beta2 = static_cast<float>(options.beta2);
  result.one_minus_beta1 = static_cast<float>(1 - options.beta1);
  result.one_minus_beta2 = static_cast<float>(1 - options.beta2);
  result.inverse_bias1 = static_cast<float>(1 / (1 - std::pow(options.beta1, steps)));
  result.inverse_root_bias2 = static_cast<float>(1 / std::sqrt(1 - std::pow(options.beta2, steps)));
  result.eps = static_cast<float>(options.eps);
  result.weight_decay = static_cast<float>(options.weight_decay);
  return result;
}

}  // namespace

Lamb::Lamb(const std::vector<ParameterGroup<LambOptions>>& groups)
    : GroupedOptimizer(groups, {"exp_avg", "exp_avg_sq"}, Norms::kPerParameter) {
  for (const auto& group : groups) Lamb::require_valid(group.options);
}

void Lamb::require_valid(const LambOptions& options) const {
  check(options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1,
        "lamb: the betas {} and {} must be in [0, 1)", options.beta1, options.beta2);
  check(options.eps >= 0 && options.weight_decay >= 0,
        "lamb: eps and weight_decay must not be negative");
}

Optimizer::NormPair Lamb::measure(const Slice& slice) const {
  std::array<float, kBlock> direction;
  lamb_moments_kernel(arguments(options(slice.group), slice.step), slice.parameter, slice.gradient,
                      slice.state[0], slice.state[1], direction.data(), slice.count, slice.sums);
  return {sum_of_squares(slice.parameter, slice.count),
          sum_of_squares(direction.data(), slice.count)};
}

void Lamb::update(const Slice& slice, const NormPair& norms) const {
  const LambOptions& group = options(slice.group);
  const bool adapts = group.adapt && norms[0] > 0 && norms[1] > 0;
  const double ratio = adapts ? norms[0] / norms[1] : 1;
  lamb_kernel(arguments(group, slice.step), static_cast<float>(learning_rate(slice.group) * ratio),
              slice.parameter, slice.state[0], slice.state[1], slice.count, slice.sums);
}

Lars::Lars(const std::vector<ParameterGroup<LarsOptions>>& groups)
    : GroupedOptimizer(groups, {"momentum_buffer"}, Norms::kPerParameter) {
  for (const auto& group : groups) Lars::require_valid(group.options);
}

void Lars::require_valid(const LarsOptions& options) const {
  check(options.momentum >= 0 && options.momentum < 1, "lars: the momentum {} must be in [0, 1)",
        options.momentum);
  check(options.weight_decay >= 0 && options.trust_coefficient > 0,
        "lars: weight_decay must not be negative, trust_coefficient must be above 0");
}

Optimizer::NormPair Lars::measure(const Slice& slice) const {
  return {sum_of_squares(slice.parameter, slice.count),
          sum_of_squares(slice.gradient, slice.count)};
}

void Lars::update(const Slice& slice, const NormPair& norms) const {
  const LarsOptions& group = options(slice.group);
  const bool adapts = group.adapt && norms[0] > 0 && norms[1] > 0;
  const double ratio =
      adapts ? group.trust_coefficient * norms[0] / (norms[1] + group.weight_decay * norms[0]) : 1;
  lars_kernel(static_cast<float>(learning_rate(slice.group) * ratio),
              static_cast<float>(group.momentum), static_cast<float>(group.weight_decay),
              slice.parameter, slice.gradient, slice.state[0], slice.count, slice.sums);
}

}  // namespace paceline::optim
