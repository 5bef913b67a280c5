// The update rules on CUDA tensors. The formulas are those of the kernels
// (engine/optim_kernels/kernels.h). None of the functions waits for the device.

#include <cmath>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/optim/rules/update_slice.h"

namespace paceline::optim {

void Optimizer::update(const UpdateLists& /*lists*/) const {
  fail(ErrorCode::kUnsupported, "{}: this optimizer has no step for CUDA tensors", name());
}

std::vector<at::Tensor> Optimizer::measure(const UpdateLists& lists) const {
  update(lists);
  return {};
}

namespace {

using Tensors = std::vector<at::Tensor>;

// Returns the gradients plus `decay` times the parameters.
Tensors decayed(const UpdateLists& lists, double decay) {
  return decay == 0 ? lists.gradients : at::_foreach_add(lists.gradients, lists.parameters, decay);
}

template <class Options>
void update_moments(const Options& options, const UpdateLists& lists, const Tensors& gradients) {
  const auto [beta1, beta2] = options.betas;
  at::_foreach_mul_(lists.states[0], beta1);
  at::_foreach_add_(lists.states[0], gradients, 1 - beta1);
  at::_foreach_mul_(lists.states[1], beta2);
  at::_foreach_addcmul_(lists.states[1], gradients, gradients, 1 - beta2);
}

// Returns the square roots of the second moments, corrected for their bias, plus eps.
template <class Options>
Tensors denominators(const Options& options, const UpdateLists& lists) {
  const double steps = static_cast<double>(lists.step);
  Tensors roots = at::_foreach_sqrt(lists.states[1]);
  at::_foreach_mul_(roots, 1 / std::sqrt(1 - std::pow(std::get<1>(options.betas), steps)));
  at::_foreach_add_(roots, options.eps);
  return roots;
}

template <class Options>
double inverse_bias1(const Options& options, const UpdateLists& lists) {
  return 1 / (1 - std::pow(std::get<0>(options.betas), static_cast<double>(lists.step)));
}

template <class Options>
void adam_step(const Options& options, const UpdateLists& lists, const Tensors& gradients,
               double learning_rate) {
  update_moments(options, lists, gradients);
  at::_foreach_addcdiv_(lists.parameters, lists.states[0], denominators(options, lists),
                        -learning_rate * inverse_bias1(options, lists));
}

at::Tensor sum_of_squares(const at::Tensor& values) {
  return values.to(at::kDouble).square().sum();
}

// Returns `ratio` where both norms are above 0, and 1 elsewhere, as float32.
at::Tensor where_both(const at::Tensor& norms, const at::Tensor& ratio) {
  return at::where(norms.gt(0).all(), ratio, at::ones_like(ratio)).to(at::kFloat);
}

}  // namespace

void Adam::update(const UpdateLists& lists) const {
  const AdamOptions& group = options(lists.group);
  adam_step(group, lists, decayed(lists, group.weight_decay), learning_rate(lists.group));
}

void AdamW::update(const UpdateLists& lists) const {
  const AdamWOptions& group = options(lists.group);
  const double rate = learning_rate(lists.group);
  if (group.weight_decay > 0) at::_foreach_mul_(lists.parameters, 1 - rate * group.weight_decay);
  adam_step(group, lists, lists.gradients, rate);
}

void SGD::update(const UpdateLists& lists) const {
  const SGDOptions& group = options(lists.group);
  const Tensors gradients = decayed(lists, group.weight_decay);
  const double rate = learning_rate(lists.group);
  if (group.momentum == 0) return at::_foreach_add_(lists.parameters, gradients, -rate);
  const Tensors& velocities = lists.states[0];
  at::_foreach_mul_(velocities, group.momentum);
  at::_foreach_add_(velocities, gradients, lists.step == 1 ? 1 : 1 - group.dampening);
  const Tensors directions =
      group.nesterov ? at::_foreach_add(gradients, velocities, group.momentum) : velocities;
  at::_foreach_add_(lists.parameters, directions, -rate);
}

namespace {

// Returns the directions of LAMB's step.
Tensors lamb_directions(const LAMBOptions& options, const UpdateLists& lists) {
  Tensors directions = at::_foreach_mul(lists.states[0], inverse_bias1(options, lists));
  at::_foreach_div_(directions, denominators(options, lists));
  at::_foreach_add_(directions, lists.parameters, options.weight_decay);
  return directions;
}

}  // namespace

Tensors LAMB::measure(const UpdateLists& lists) const {
  const LAMBOptions& group = options(lists.group);
  update_moments(group, lists, lists.gradients);
  const Tensors directions = lamb_directions(group, lists);
  Tensors sums;
  for (std::size_t i = 0; i < directions.size(); ++i)
    sums.push_back(at::stack({sum_of_squares(lists.parameters[i]), sum_of_squares(directions[i])}));
  return sums;
}

void LAMB::update(const UpdateLists& lists) const {
  const LAMBOptions& group = options(lists.group);
  const Tensors directions = lamb_directions(group, lists);
  const double rate = learning_rate(lists.group);
  for (std::size_t i = 0; i < directions.size(); ++i) {
    const at::Tensor& norms = lists.norms[i];
    const at::Tensor step =
        group.adapt ? directions[i] * where_both(norms, norms[0] / norms[1]) : directions[i];
    lists.parameters[i].sub_(step, rate);
  }
}

Tensors LARS::measure(const UpdateLists& lists) const {
  Tensors sums;
  for (std::size_t i = 0; i < lists.parameters.size(); ++i)
    sums.push_back(
        at::stack({sum_of_squares(lists.parameters[i]), sum_of_squares(lists.gradients[i])}));
  return sums;
}

void LARS::update(const UpdateLists& lists) const {
  const LARSOptions& group = options(lists.group);
  const Tensors gradients = decayed(lists, group.weight_decay);
  const double rate = learning_rate(lists.group);
  at::_foreach_mul_(lists.states[0], group.momentum);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const at::Tensor& norms = lists.norms[i];
    const at::Tensor ratio =
        group.trust_coefficient * norms[0] / (norms[1] + group.weight_decay * norms[0]);
    const at::Tensor step = group.adapt ? gradients[i] * where_both(norms, ratio) : gradients[i];
    lists.states[0][i].add_(step, rate);
  }
  at::_foreach_sub_(lists.parameters, lists.states[0]);
}

}  // namespace paceline::optim
