#include "paceline/optim/clip_gradients.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "paceline/core/check.h"
#include "paceline/optim/block_kernels.h"
#include "paceline/optim/gradient_blocks.h"

namespace paceline::optim {
namespace {

std::vector<double> of_blocks(const at::Tensor& gradient,
                              const std::function<double(const float*, std::int64_t)>& value) {
  std::vector<double> values(static_cast<std::size_t>((gradient.numel() + kBlock - 1) / kBlock));
  for_blocks(gradient, false, [&](std::int64_t block, const float* elements, std::int64_t count) {
    values[static_cast<std::size_t>(block)] = value(elements, count);
  });
  return values;
}

double largest(double a, double b) { return std::isnan(a) || a > b ? a : b; }

double norm_of(const std::vector<OrderedGradient>& gradients, double power) {
  double total = 0;
  const bool is_largest = std::isinf(power);
  for (const auto& [number, gradient] : gradients) {
    const auto values = of_blocks(gradient, [&](const float* elements, std::int64_t count) {
      return is_largest ? largest_magnitude(elements, count)
                        : sum_of_powers(elements, count, power);
    });
    for (const double value : values) total = is_largest ? largest(total, value) : total + value;
  }
  if (is_largest || power == 1) return total;
  return power == 2 ? std::sqrt(total) : std::pow(total, 1 / power);
}

[[noreturn]] void fail_nonfinite(const std::vector<OrderedGradient>& gradients, double norm) {
  for (const auto& [number, gradient] : gradients) {
    const auto finite = of_blocks(gradient, [](const float* elements, std::int64_t count) {
      return all_finite(elements, count) ? 1.0 : 0.0;
    });
    check(std::ranges::find(finite, 0.0) == finite.end(),
          "clip_grad_norm: the norm is {}, because the gradient of parameter {} is not finite",
          norm, number);
  }
  fail(ErrorCode::kInvalid, "clip_grad_norm: the norm is {}, though every gradient is finite",
       norm);
}

void require_power(double power) {
  check(power > 0, "the order of a norm must be above 0, not {}", power);
}

}  // namespace

double grad_norm(const std::vector<at::Tensor>& parameters, double norm_type) {
  require_power(norm_type);
  return norm_of(ordered_gradients(parameters), norm_type);
}

double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm,
                      const ClipOptions& options) {
  require_power(options.norm_type);
  check(max_norm >= 0, "clip_grad_norm: max_norm {} must not be negative", max_norm);
  const auto gradients = ordered_gradients(parameters);
  const double norm = norm_of(gradients, options.norm_type);
  if (options.error_if_nonfinite && !std::isfinite(norm)) fail_nonfinite(gradients, norm);
  const auto factor = static_cast<float>(max_norm / (norm + 1e-6));
  if (factor >= 1) return norm;
  for (const at::Tensor& gradient : gradients_of(parameters)) {
    for_blocks(gradient, true, [&](std::int64_t, float* elements, std::int64_t count) {
      scale(elements, count, factor);
    });
  }
  return norm;
}

void clip_grad_value(const std::vector<at::Tensor>& parameters, double clip_value) {
  check(clip_value >= 0, "clip_grad_value: {} must not be negative", clip_value);
  for (const at::Tensor& gradient : gradients_of(parameters)) {
    for_blocks(gradient, true, [&](std::int64_t, float* elements, std::int64_t count) {
      clamp(elements, count, static_cast<float>(clip_value));
    });
  }
}

}  // namespace paceline::optim
