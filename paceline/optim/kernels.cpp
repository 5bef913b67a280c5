#include "paceline/optim/kernels.h"

#include <cmath>

#include "paceline/core/vectorised.h"

namespace paceline::optim {
namespace {

inline std::uint32_t word(float value) { return std::bit_cast<std::uint32_t>(value); }

inline float lamb_direction(const LambKernelArguments& c, float value, float m, float v) {
  return m * c.inverse_bias1 / (std::sqrt(v) * c.inverse_root_bias2 + c.eps) +
         c.weight_decay * value;
}

}  // namespace

PACELINE_VECTORISED
std::uint32_t sum_words(const float* values, std::int64_t count) {
  std::uint32_t sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += word(values[i]);
  return sum;
}

PACELINE_VECTORISED
void adam_kernel(const AdamKernelArguments& a, float* __restrict parameter,
                 const float* __restrict gradient, float* __restrict exp_avg,
                 float* __restrict exp_avg_sq, std::int64_t count, WordSums* __restrict sums) {
  const AdamKernelArguments c = a;
  std::uint32_t m_read = 0, m_written = 0, v_read = 0, v_written = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = parameter[i] * c.parameter_scale;
    const float g = gradient[i] + c.gradient_decay * value;
    m_read += word(exp_avg[i]);
    v_read += word(exp_avg_sq[i]);
    const float m = c.beta1 * exp_avg[i] + c.one_minus_beta1 * g;
    const float v = c.beta2 * exp_avg_sq[i] + c.one_minus_beta2 * g * g;
    m_written += word(m);
    v_written += word(v);
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    parameter[i] = value - c.step_size * m / (std::sqrt(v) * c.inverse_root_bias2 + c.eps);
  }
  sums[0].add(m_read, m_written);
  sums[1].add(v_read, v_written);
}

PACELINE_VECTORISED
void sgd_kernel(const SgdKernelArguments& a, float* __restrict parameter,
                const float* __restrict gradient, float* __restrict velocity, std::int64_t count,
                WordSums* __restrict sums) {
  const SgdKernelArguments c = a;
  if (velocity == nullptr) {
    for (std::int64_t i = 0; i < count; ++i) {
      parameter[i] -= c.lr * (gradient[i] + c.weight_decay * parameter[i]);
    }
    return;
  }
  std::uint32_t read = 0, written = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const float g = gradient[i] + c.weight_decay * parameter[i];
    read += word(velocity[i]);
    const float u = c.momentum * velocity[i] + c.gradient_share * g;
    written += word(u);
    velocity[i] = u;
    parameter[i] -= c.lr * (c.nesterov ? g + c.momentum * u : u);
  }
  sums[0].add(read, written);
}

PACELINE_VECTORISED
void lamb_moments_kernel(const LambKernelArguments& a, const float* __restrict parameter,
                         const float* __restrict gradient, float* __restrict exp_avg,
                         float* __restrict exp_avg_sq, float* __restrict direction,
                         std::int64_t count, WordSums* __restrict sums) {
  const LambKernelArguments c = a;
  std::uint32_t m_read = 0, m_written = 0, v_read = 0, v_written = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const float g = gradient[i];
    m_read += word(exp_avg[i]);
    v_read += word(exp_avg_sq[i]);
    const float m = c.beta1 * exp_avg[i] + c.one_minus_beta1 * g;
    const float v = c.beta2 * exp_avg_sq[i] + c.one_minus_beta2 * g * g;
    m_written += word(m);
    v_written += word(v);
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    direction[i] = lamb_direction(c, parameter[i], m, v);
  }
  sums[0].add(m_read, m_written);
  sums[1].add(v_read, v_written);
}

PACELINE_VECTORISED
void lamb_kernel(const LambKernelArguments& a, float rate, float* __restrict parameter,
                 const float* __restrict exp_avg, const float* __restrict exp_avg_sq,
                 std::int64_t count, WordSums* __restrict sums) {
  const LambKernelArguments c = a;
  std::uint32_t m_sum = 0, v_sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    m_sum += word(exp_avg[i]);
    v_sum += word(exp_avg_sq[i]);
    parameter[i] -= rate * lamb_direction(c, parameter[i], exp_avg[i], exp_avg_sq[i]);
  }
  sums[0].add(m_sum, m_sum);
  sums[1].add(v_sum, v_sum);
}

PACELINE_VECTORISED
void lars_kernel(float rate, float momentum, float weight_decay, float* __restrict parameter,
                 const float* __restrict gradient, float* __restrict velocity, std::int64_t count,
                 WordSums* __restrict sums) {
  std::uint32_t read = 0, written = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    read += word(velocity[i]);
    const float u = momentum * velocity[i] + rate * (gradient[i] + weight_decay * parameter[i]);
    written += word(u);
    velocity[i] = u;
    parameter[i] -= u;
  }
  sums[0].add(read, written);
}

PACELINE_VECTORISED
void average_kernel(float decay, float one_minus_decay, const float* __restrict values,
                    float* __restrict average, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    average[i] = decay * average[i] + one_minus_decay * values[i];
}

}  // namespace paceline::optim
