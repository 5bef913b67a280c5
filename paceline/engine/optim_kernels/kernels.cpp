#include "paceline/engine/optim_kernels/kernels.h"

#include <cmath>

#include "paceline/engine/core/system/simd.h"

namespace paceline::optim {

namespace {

inline std::uint32_t word(float value) { return std::bit_cast<std::uint32_t>(value); }

inline float lamb_direction(const LambKernelArguments& c, float value, float m, float v) {
  return m * c.inverse_bias1 / (std::sqrt(v) * c.inverse_root_bias2 + c.eps) +
         c.weight_decay * value;
}

}  // namespace

PACELINE_VECTORISED
void adam_kernel(const AdamKernelArguments& a, float* __restrict parameter,
                 const float* __restrict gradient, float* __restrict exp_avg,
                 float* __restrict exp_avg_sq, std::int64_t count, WordSums* __restrict sums) {
  const AdamKernelArguments c = a;
  std::uint32_t p_read = 0, p_written = 0, m_read = 0, m_written = 0, v_read = 0, v_written = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    p_read += word(parameter[i]);
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
    const float p = value - c.step_size * m / (std::sqrt(v) * c.inverse_root_bias2 + c.eps);
    p_written += word(p);
    parameter[i] = p;
  }
  sums[0].add(p_read, p_written);
  sums[1].add(m_read, m_written);
  sums[2].add(v_read, v_written);
}

PACELINE_VECTORISED
void sgd_kernel(const SgdKernelArguments& a, float* __restrict parameter,
                const float* __restrict gradient, float* __restrict velocity, std::int64_t count,
                WordSums* __restrict sums) {
  const SgdKernelArguments c = a;
  std::uint32_t p_read = 0, p_written = 0, read = 0, written = 0;
  if (velocity == nullptr) {
    for (std::int64_t i = 0; i < count; ++i) {
      p_read += word(parameter[i]);
      const float p = parameter[i] - c.lr * (gradient[i] + c.weight_decay * parameter[i]);
      p_written += word(p);
      parameter[i] = p;
    }
    sums[0].add(p_read, p_written);
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    p_read += word(parameter[i]);
    const float g = gradient[i] + c.weight_decay * parameter[i];
    read += word(velocity[i]);
    const float u = c.momentum * velocity[i] + c.gradient_share * g;
    written += word(u);
    velocity[i] = u;
    const float p = parameter[i] - c.lr * (c.nesterov ? g + c.momentum * u : u);
    p_written += word(p);
    parameter[i] = p;
  }
  sums[0].add(p_read, p_written);
  sums[1].add(read, written);
}

PACELINE_VECTORISED
void adagrad_kernel(const AdagradKernelArguments& a, float* __restrict parameter,
                    const float* __restrict gradient, float* __restrict sum_of_squares,
                    std::int64_t count, WordSums* __restrict sums) {
  const AdagradKernelArguments c = a;
  std::uint32_t p_read = 0, p_written = 0, read = 0, written = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    p_read += word(parameter[i]);
    read += word(sum_of_squares[i]);
    const float g = gradient[i] + c.weight_decay * parameter[i];
    const float sum = sum_of_squares[i] + g * g;
    written += word(sum);
    sum_of_squares[i] = sum;
    const float p = parameter[i] - c.lr * g / (std::sqrt(sum) + c.eps);
    p_written += word(p);
    parameter[i] = p;
  }
  sums[0].add(p_read, p_written);
  sums[1].add(read, written);
}

PACELINE_VECTORISED
void lamb_moments_kernel(const LambKernelArguments& a, const float* __restrict parameter,
                         const float* __restrict gradient, float* __restrict exp_avg,
                         float* __restrict exp_avg_sq, float* __restrict direction,
                         std::int64_t count, WordSums* __restrict sums) {
  const LambKernelArguments c = a;
  std::uint32_t p_sum = 0, m_read = 0, m_written = 0, v_read = 0, v_written = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    p_sum += word(parameter[i]);
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
  sums[0].add(p_sum, p_sum);
  sums[1].add(m_read, m_written);
  sums[2].add(v_read, v_written);
}

PACELINE_VECTORISED
void lamb_kernel(const LambKernelArguments& a, float rate, float* __restrict parameter,
                 const float* __restrict exp_avg, const float* __restrict exp_avg_sq,
                 std::int64_t count, WordSums* __restrict sums) {
  const LambKernelArguments c = a;
  std::uint32_t p_read = 0, p_written = 0, m_sum = 0, v_sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    p_read += word(parameter[i]);
    m_sum += word(exp_avg[i]);
    v_sum += word(exp_avg_sq[i]);
    const float p =
        parameter[i] - rate * lamb_direction(c, parameter[i], exp_avg[i], exp_avg_sq[i]);
    p_written += word(p);
    parameter[i] = p;
  }
  sums[0].add(p_read, p_written);
  sums[1].add(m_sum, m_sum);
  sums[2].add(v_sum, v_sum);
}

PACELINE_VECTORISED
void lars_kernel(float rate, float momentum, float weight_decay, float* __restrict parameter,
                 const float* __restrict gradient, float* __restrict velocity, std::int64_t count,
                 WordSums* __restrict sums) {
  std::uint32_t p_read = 0, p_written = 0, read = 0, written = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    p_read += word(parameter[i]);
    read += word(velocity[i]);
    const float u = momentum * velocity[i] + rate * (gradient[i] + weight_decay * parameter[i]);
    written += word(u);
    velocity[i] = u;
    const float p = parameter[i] - u;
    p_written += word(p);
    parameter[i] = p;
  }
  sums[0].add(p_read, p_written);
  sums[1].add(read, written);
}

PACELINE_VECTORISED
void average_kernel(float decay, float one_minus_decay, const float* __restrict values,
                    float* __restrict average, std::int64_t count, WordSums* __restrict sums) {
  std::uint32_t read = 0, written = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    read += word(average[i]);
    const float mean = decay * average[i] + one_minus_decay * values[i];
    written += word(mean);
    average[i] = mean;
  }
  sums->add(read, written);
}

}  // namespace paceline::optim
