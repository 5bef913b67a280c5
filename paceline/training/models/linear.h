#pragma once

// torch::nn::Linear and its matrix product, as fast as this processor allows:
//
// - A few rows without gradients: generation computes one token after another, and each token reads
//   every weight once. LibTorch's product of so few rows reads at less than half of memory's speed.
// - If LibTorch uses MKL on a processor that is not from Intel: oneDNN is twice as fast.
//
// All other products use LibTorch.
//
// Thread safety: same as torch::nn::Linear.

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

namespace paceline::models {

class LinearImpl : public torch::nn::LinearImpl {
 public:
  using torch::nn::LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& input);
};
TORCH_MODULE(Linear);

}  // namespace paceline::models
