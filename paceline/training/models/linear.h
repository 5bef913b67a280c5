#pragma once

// torch::nn::Linear, and the product behind it, as fast as this processor can:
//
// - A few rows without gradients: generation makes one token after another, and each reads every
//   weight once. LibTorch's product of so few rows reads at less than half of memory's speed.
// - Where LibTorch multiplies by MKL and the processor is not Intel's: by oneDNN, twice as fast
//   (one_dnn_product.h).
//
// Everything else is LibTorch's. benchmarks/README.md has the measurements.
//
// Thread safety: that of torch::nn::Linear.

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

namespace paceline::models {

// [..., in_features], [out_features, in_features], [out_features] or undefined -> [...,
// out_features], as at::linear but for rounding, with its gradients. Float32 outside of autocast
// may take another way than LibTorch's: the same one for the same sizes on the same machine. Of up
// to 8 rows without gradients a row's result does not depend on the others.
at::Tensor apply_linear(const at::Tensor& input, const at::Tensor& weight,
                        const at::Tensor& bias = {});

class LinearImpl : public torch::nn::LinearImpl {
 public:
  using torch::nn::LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& input) { return apply_linear(input, weight, bias); }
};
TORCH_MODULE(Linear);

}  // namespace paceline::models
