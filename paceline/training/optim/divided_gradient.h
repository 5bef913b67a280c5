#pragma once

// Makes it an error to read `.grad` of a parameter whose gradient is divided among ranks, while
// there is none. LibTorch's own functions, such as torch::nn::utils::clip_grad_norm_ and the steps
// of torch::optim, would take it for a parameter without a gradient and silently do nothing.
//
// LibTorch keeps what autograd knows of a tensor in an object with virtual functions; this replaces
// it by one that looks. A backward pass and zero_grad() use mutable_grad(), which stays as it was.
//
// Thread safety: none for one parameter.

#include <ATen/core/Tensor.h>

namespace paceline::optim {

// From now on parameter.grad() throws Error(kInvalid) while it is undefined and
// Optimizer::divides_gradient_of(parameter). Requires: it is a leaf.
void guard_divided_gradient(const at::Tensor& parameter);

}  // namespace paceline::optim
