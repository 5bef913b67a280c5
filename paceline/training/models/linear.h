#pragma once

// torch::nn::Linear and its matrix product, as fast as this processor allows:
//
// - A few rows without gradients: generation computes one token after another, and each token reads
//   every weight once. LibTorch's product of so few rows reads at less than half of memory's speed.
// - If LibTorch uses MKL on a processor that is not from Intel: oneDNN is twice as fast.
//
// All other products use LibTorch. benchmarks/README.md has the measurements.
//
// Thread safety: same as torch::nn::Linear.

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

namespace paceline::models {

// [..., in_features], [out_features, in_features], [out_features] or undefined -> [...,
// out_features]: equals at::linear except for rounding, with gradients. Float32 products outside of
// autocast may be computed by code other than LibTorch's, depending on the sizes, the machine and
// the gradient mode. For up to 8 rows without gradients, a row's result does not depend on the
// other rows.
at::Tensor apply_linear(const at::Tensor& input, const at::Tensor& weight,
                        const at::Tensor& bias = {});

class LinearImpl : public torch::nn::LinearImpl {
 public:
  using torch::nn::LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& input) { return apply_linear(input, weight, bias); }
};
TORCH_MODULE(Linear);

}  // namespace paceline::models
