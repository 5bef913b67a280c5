#include "paceline/optim/kernels.h"

#include <cmath>

// GCC compiles the function once per instruction set and the loader picks; elsewhere the portable
// code serves.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define PACELINE_VECTORISED \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define PACELINE_VECTORISED
#endif

namespace paceline::optim {

PACELINE_VECTORISED
void adam_kernel(const AdamKernelArguments& a, float* __restrict parameter,
                 const float* __restrict gradient, float* __restrict exp_avg,
                 float* __restrict exp_avg_sq, std::int64_t count) {
  const AdamKernelArguments c = a;
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = parameter[i] * c.parameter_scale;
    const float g = gradient[i] + c.gradient_decay * value;
    const float m = c.beta1 * exp_avg[i] + c.one_minus_beta1 * g;
    const float v = c.beta2 * exp_avg_sq[i] + c.one_minus_beta2 * g * g;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    parameter[i] = value - c.step_size * m / (std::sqrt(v) * c.inverse_root_bias2 + c.eps);
  }
}

PACELINE_VECTORISED
void sgd_kernel(const SgdKernelArguments& a, float* __restrict parameter,
                const float* __restrict gradient, float* __restrict velocity, std::int64_t count) {
  const SgdKernelArguments c = a;
  if (velocity == nullptr) {
    for (std::int64_t i = 0; i < count; ++i) {
      parameter[i] -= c.lr * (gradient[i] + c.weight_decay * parameter[i]);
    }
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const float g = gradient[i] + c.weight_decay * parameter[i];
    const float u = c.momentum * velocity[i] + c.gradient_share * g;
    velocity[i] = u;
    parameter[i] -= c.lr * (c.nesterov ? g + c.momentum * u : u);
  }
}

}  // namespace paceline::optim
