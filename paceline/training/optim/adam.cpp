#include "paceline/training/optim/adam.h"

#include <cmath>

#include "paceline/engine/core/check.h"
#include "paceline/training/optim/kernels.h"

namespace paceline::optim {
namespace {

template <class Options>
void require_possible(const Options& options) {
  check(options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1,
        "adam: the betas {} and {} must be in [0, 1)", options.beta1, options.beta2);
  check(options.eps >= 0 && options.weight_decay >= 0,
        "adam: eps and weight_decay must not be negative");
}

template <class Options>
AdamKernelArguments arguments(const Options& options, double learning_rate, std::int64_t step) {
  const double steps = static_cast<double>(step);
  AdamKernelArguments result;
  result.beta1 = static_cast<float>(options.beta1);
  result.beta2 = static_cast<float>(options.beta2);
  result.one_minus_beta1 = static_cast<float>(1 - options.beta1);
  result.one_minus_beta2 = static_cast<float>(1 - options.beta2);
  result.step_size = static_cast<float>(learning_rate / (1 - std::pow(options.beta1, steps)));
  result.inverse_root_bias2 = static_cast<float>(1 / std::sqrt(1 - std::pow(options.beta2, steps)));
  result.eps = static_cast<float>(options.eps);
  return result;
}

}  // namespace

Adam::Adam(const std::vector<ParameterGroup<AdamOptions>>& groups)
    : GroupedOptimizer(groups, {"exp_avg", "exp_avg_sq"}) {
  for (const auto& group : groups) Adam::require_valid(group.options);
}

void Adam::require_valid(const AdamOptions& options) const { require_possible(options); }

void Adam::update(const Slice& slice, const NormPair&) const {
  auto kernel = arguments(options(slice.group), learning_rate(slice.group), slice.step);
  kernel.gradient_decay = static_cast<float>(options(slice.group).weight_decay);
  adam_kernel(kernel, slice.parameter, slice.gradient, slice.state[0], slice.state[1], slice.count,
              slice.sums);
}

AdamW::AdamW(const std::vector<ParameterGroup<AdamWOptions>>& groups)
    : GroupedOptimizer(groups, {"exp_avg", "exp_avg_sq"}) {
  for (const auto& group : groups) AdamW::require_valid(group.options);
}

void AdamW::require_valid(const AdamWOptions& options) const { require_possible(options); }

void AdamW::update(const Slice& slice, const NormPair&) const {
  const double rate = learning_rate(slice.group);
  auto kernel = arguments(options(slice.group), rate, slice.step);
  kernel.parameter_scale = static_cast<float>(1 - rate * options(slice.group).weight_decay);
  adam_kernel(kernel, slice.parameter, slice.gradient, slice.state[0], slice.state[1], slice.count,
              slice.sums);
}

}  // namespace paceline::optim
