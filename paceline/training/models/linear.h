#pragma once

// torch::nn::Linear and its product, as fast as this processor allows:
//
// - A few rows without gradients: generation makes one token after another, and each token reads
//   every weight once. LibTorch's product of so few rows reads at less than half of memory's speed.
// - If LibTorch multiplies by MKL and the processor is not Intel's: oneDNN is twice as fast.
//
// All other products are LibTorch's. benchmarks/README.md has the measurements.
//
// Thread safety: as torch::nn::Linear.

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

namespace paceline::models {

// [..., in_features], [out_features, in_features], [out_features] or undefined -> [...,
// out_features]: at::linear but for rounding, with gradients. Float32 outside of autocast may be
// multiplied by a product other than LibTorch's, depending on the sizes, the machine and the
// gradient mode. For up to 8 rows without gradients, a row's result does not depend on the other
// rows.
at::Tensor apply_linear(const at::Tensor& input, const at::Tensor& weight,
                        const at::Tensor& bias = {});

class LinearImpl : public torch::nn::LinearImpl {
 public:
  using torch::nn::LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& input) { return apply_linear(input, weight, bias); }
};
TORCH_MODULE(Linear);

}  // namespace paceline::models
