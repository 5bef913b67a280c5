#include "paceline/training/optim/rules/update_rules.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "paceline/engine/core/check.h"
#include "paceline/engine/optim_kernels/kernels.h"
#include "paceline/training/optim/rules/update_slice.h"

namespace paceline::optim {

namespace {

template <class Options>
void require_possible(const Options& options, const char* name) {
  const auto [beta1, beta2] = options.betas;
  check(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1,
        "{}: the betas {} and {} must be in [0, 1)", name, beta1, beta2);
  check(options.eps >= 0 && options.weight_decay >= 0,
        "{}: eps and weight_decay must not be negative", name);
}

template <class Options>
AdamKernelArguments arguments(const Options& options, double learning_rate, std::int64_t step) {
  const double steps = static_cast<double>(step);
  const auto [beta1, beta2] = options.betas;
  AdamKernelArguments result;
  result.beta1 = static_cast<float>(beta1);
  result.beta2 = static_cast<float>(beta2);
  result.one_minus_beta1 = static_cast<float>(1 - beta1);
  result.one_minus_beta2 = static_cast<float>(1 - beta2);
  result.step_size = static_cast<float>(learning_rate / (1 - std::pow(beta1, steps)));
  result.inverse_root_bias2 = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, steps)));
  result.eps = static_cast<float>(options.eps);
  return result;
}

}  // namespace

Adam::Adam(const std::vector<at::Tensor>& parameters, const AdamOptions& options)
    : Adam({{parameters, options}}) {}

Adam::Adam(const std::vector<ParameterGroup<AdamOptions>>& groups)
    : GroupedOptimizer(groups, {"exp_avg", "exp_avg_sq"}) {
  for (const auto& group : groups) Adam::require_valid(group.options);
}

void Adam::require_valid(const AdamOptions& options) const { require_possible(options, name()); }

void Adam::update(const UpdateSlice& slice, const NormPair&) const {
  auto kernel = arguments(options(slice.group), learning_rate(slice.group), slice.step);
  kernel.gradient_decay = static_cast<float>(options(slice.group).weight_decay);
  adam_kernel(kernel, slice.parameter, slice.gradient, slice.state[0], slice.state[1], slice.count,
              slice.sums);
}

AdamW::AdamW(const std::vector<at::Tensor>& parameters, const AdamWOptions& options)
    : AdamW({{parameters, options}}) {}

AdamW::AdamW(const std::vector<ParameterGroup<AdamWOptions>>& groups)
    : GroupedOptimizer(groups, {"exp_avg", "exp_avg_sq"}) {
  for (const auto& group : groups) AdamW::require_valid(group.options);
}

void AdamW::require_valid(const AdamWOptions& options) const { require_possible(options, name()); }

void AdamW::update(const UpdateSlice& slice, const NormPair&) const {
  const double rate = learning_rate(slice.group);
  auto kernel = arguments(options(slice.group), rate, slice.step);
  kernel.parameter_scale = static_cast<float>(1 - rate * options(slice.group).weight_decay);
  adam_kernel(kernel, slice.parameter, slice.gradient, slice.state[0], slice.state[1], slice.count,
              slice.sums);
}

namespace {

std::vector<std::string> state_names(const std::vector<ParameterGroup<SGDOptions>>& groups) {
  const bool any =
      std::ranges::any_of(groups, [](const auto& group) { return group.options.momentum > 0; });
  return any ? std::vector<std::string>{"momentum_buffer"} : std::vector<std::string>{};
}

}  // namespace

SGD::SGD(const std::vector<at::Tensor>& parameters, const SGDOptions& options)
    : SGD({{parameters, options}}) {}

SGD::SGD(const std::vector<ParameterGroup<SGDOptions>>& groups)
    : GroupedOptimizer(groups, state_names(groups)) {
  for (const auto& group : groups) SGD::require_valid(group.options);
}

void SGD::require_valid(const SGDOptions& options) const {
  check(options.momentum >= 0 && options.weight_decay >= 0,
        "sgd: momentum and weight_decay must not be negative");
  check(!options.nesterov || (options.momentum > 0 && options.dampening == 0),
        "sgd: nesterov needs a momentum above 0 and no dampening");
  check(options.momentum == 0 || has_state(),
        "sgd: a group with momentum cannot be added to groups without, which keep no state: make "
        "the optimizer with both");
}

void SGD::update(const UpdateSlice& slice, const NormPair&) const {
  const SGDOptions& group = options(slice.group);
  SgdKernelArguments kernel;
  kernel.lr = static_cast<float>(learning_rate(slice.group));
  kernel.momentum = static_cast<float>(group.momentum);
  // In a parameter's first step the velocity is the whole gradient, without dampening.
  kernel.gradient_share = slice.step == 1 ? 1.0f : static_cast<float>(1 - group.dampening);
  kernel.weight_decay = static_cast<float>(group.weight_decay);
  kernel.nesterov = group.nesterov;
  sgd_kernel(kernel, slice.parameter, slice.gradient, group.momentum > 0 ? slice.state[0] : nullptr,
             slice.count, slice.sums);
}

namespace {

LambKernelArguments arguments(const LAMBOptions& options, std::int64_t step) {
  const double steps = static_cast<double>(step);
  const auto [beta1, beta2] = options.betas;
  LambKernelArguments result;
  result.beta1 = static_cast<float>(beta1);
  result.beta2 = static_cast<float>(beta2);
  result.one_minus_beta1 = static_cast<float>(1 - beta1);
  result.one_minus_beta2 = static_cast<float>(1 - beta2);
  result.inverse_bias1 = static_cast<float>(1 / (1 - std::pow(beta1, steps)));
  result.inverse_root_bias2 = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, steps)));
  result.eps = static_cast<float>(options.eps);
  result.weight_decay = static_cast<float>(options.weight_decay);
  return result;
}

}  // namespace

LAMB::LAMB(const std::vector<at::Tensor>& parameters, const LAMBOptions& options)
    : LAMB({{parameters, options}}) {}

LAMB::LAMB(const std::vector<ParameterGroup<LAMBOptions>>& groups)
    : GroupedOptimizer(groups, {"exp_avg", "exp_avg_sq"}, Norms::kPerParameter) {
  for (const auto& group : groups) LAMB::require_valid(group.options);
}

void LAMB::require_valid(const LAMBOptions& options) const { require_possible(options, name()); }

NormPair LAMB::measure(const UpdateSlice& slice) const {
  std::array<float, kBlock> direction;
  lamb_moments_kernel(arguments(options(slice.group), slice.step), slice.parameter, slice.gradient,
                      slice.state[0], slice.state[1], direction.data(), slice.count, slice.sums);
  return {sum_of_squares(slice.parameter, slice.count),
          sum_of_squares(direction.data(), slice.count)};
}

void LAMB::update(const UpdateSlice& slice, const NormPair& norms) const {
  const LAMBOptions& group = options(slice.group);
  const bool adapts = group.adapt && norms[0] > 0 && norms[1] > 0;
  const double ratio = adapts ? norms[0] / norms[1] : 1;
  lamb_kernel(arguments(group, slice.step), static_cast<float>(learning_rate(slice.group) * ratio),
              slice.parameter, slice.state[0], slice.state[1], slice.count, slice.sums);
}

LARS::LARS(const std::vector<at::Tensor>& parameters, const LARSOptions& options)
    : LARS({{parameters, options}}) {}

LARS::LARS(const std::vector<ParameterGroup<LARSOptions>>& groups)
    : GroupedOptimizer(groups, {"momentum_buffer"}, Norms::kPerParameter) {
  for (const auto& group : groups) LARS::require_valid(group.options);
}

void LARS::require_valid(const LARSOptions& options) const {
  check(options.momentum >= 0 && options.momentum < 1, "lars: the momentum {} must be in [0, 1)",
        options.momentum);
  check(options.weight_decay >= 0 && options.trust_coefficient > 0,
        "lars: weight_decay must not be negative, trust_coefficient must be above 0");
}

NormPair LARS::measure(const UpdateSlice& slice) const {
  return {sum_of_squares(slice.parameter, slice.count),
          sum_of_squares(slice.gradient, slice.count)};
}

void LARS::update(const UpdateSlice& slice, const NormPair& norms) const {
  const LARSOptions& group = options(slice.group);
  const bool adapts = group.adapt && norms[0] > 0 && norms[1] > 0;
  const double ratio =
      adapts ? group.trust_coefficient * norms[0] / (norms[1] + group.weight_decay * norms[0]) : 1;
  lars_kernel(static_cast<float>(learning_rate(slice.group) * ratio),
              static_cast<float>(group.momentum), static_cast<float>(group.weight_decay),
              slice.parameter, slice.gradient, slice.state[0], slice.count, slice.sums);
}

}  // namespace paceline::optim
