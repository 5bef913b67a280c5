#include "paceline/optim/adam.h"

#include <cmath>

#include "paceline/core/check.h"
#include "paceline/optim/kernels.h"

namespace paceline::optim {
namespace {

void require_valid(const AdamOptions& options) {
  check(options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1,
        "adam: the betas {} and {} must be in [0, 1)", options.beta1, options.beta2);
  check(options.eps >= 0 && options.weight_decay >= 0,
        "adam: eps and weight_decay must not be negative");
}

AdamKernelArguments arguments(const AdamOptions& options, double learning_rate, std::int64_t step) {
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

Adam::Adam(const std::vector<at::Tensor>& parameters, const AdamOptions& options)
    : Optimizer(parameters, options.lr, {"exp_avg", "exp_avg_sq"}), options_(options) {
  require_valid(options);
}

void Adam::update(const Slice& slice) const {
  auto kernel = arguments(options_, learning_rate(), slice.step);
  kernel.gradient_decay = static_cast<float>(options_.weight_decay);
  adam_kernel(kernel, slice.parameter, slice.gradient, slice.state[0], slice.state[1], slice.count);
}

AdamW::AdamW(const std::vector<at::Tensor>& parameters, const AdamOptions& options)
    : Optimizer(parameters, options.lr, {"exp_avg", "exp_avg_sq"}), options_(options) {
  require_valid(options);
}

void AdamW::update(const Slice& slice) const {
  auto kernel = arguments(options_, learning_rate(), slice.step);
  kernel.parameter_scale = static_cast<float>(1 - learning_rate() * options_.weight_decay);
  adam_kernel(kernel, slice.parameter, slice.gradient, slice.state[0], slice.state[1], slice.count);
}

}  // namespace paceline::optim
