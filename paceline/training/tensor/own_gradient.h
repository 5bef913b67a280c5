#pragma once

// `.grad` of a parameter, for the library's own reads and writes.

#include <ATen/core/Tensor.h>

namespace paceline {

// Returns `.grad`, which may be undefined. Outside of a backward pass, grad() and mutable_grad() of
// a parameter whose gradient is divided among ranks are taken for calls of the program, which reads
// or drops the gradient (guard_divided_gradient() in
// training/optim/parameters/divided_parameters.h); this function is not. Thread safety: none for
// calls with the same parameter.
at::Tensor& own_gradient(const at::Tensor& parameter);

}  // namespace paceline
