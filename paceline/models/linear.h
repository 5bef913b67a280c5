#pragma once

// torch::nn::Linear, and the product behind it, with a way of their own for a few rows without
// gradients: generation makes one token after another, and each reads every weight once. LibTorch's
// product of so few rows reads at less than half of the speed of memory (benchmarks/README.md).
//
// Thread safety: that of torch::nn::Linear.

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

namespace paceline::models {

// [..., in_features], [out_features, in_features], [out_features] or undefined -> [...,
// out_features], as at::linear. At most 8 rows of float32, while gradients and autocast are off,
// take the other way: the same but for rounding, and a row's result does not depend on the rows
// beside it.
at::Tensor apply_linear(const at::Tensor& input, const at::Tensor& weight,
                        const at::Tensor& bias = {});

class LinearImpl : public torch::nn::LinearImpl {
 public:
  using torch::nn::LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& input) { return apply_linear(input, weight, bias); }
};
TORCH_MODULE(Linear);

}  // namespace paceline::models
