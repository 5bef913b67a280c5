#pragma once

// The element loops of the optimizers, vectorised for the processor at hand. They depend on
// nothing, least of all on LibTorch.

#include <cstdint>

namespace paceline::optim {

struct AdamKernelArguments {
  float beta1 = 0, beta2 = 0, one_minus_beta1 = 0, one_minus_beta2 = 0;
  float step_size = 0;           // lr / (1 - beta1^t)
  float inverse_root_bias2 = 0;  // 1 / sqrt(1 - beta2^t)
  float eps = 0;
  float gradient_decay = 0;   // Adam: weight decay added to the gradient
  float parameter_scale = 1;  // AdamW: 1 - lr x weight decay
};

void adam_kernel(const AdamKernelArguments& a, float* parameter, const float* gradient,
                 float* exp_avg, float* exp_avg_sq, std::int64_t count);

struct SgdKernelArguments {
  float lr = 0, momentum = 0, gradient_share = 1, weight_decay = 0;
  bool nesterov = false;
};

// `velocity` is null without momentum.
void sgd_kernel(const SgdKernelArguments& a, float* parameter, const float* gradient,
                float* velocity, std::int64_t count);

}  // namespace paceline::optim
