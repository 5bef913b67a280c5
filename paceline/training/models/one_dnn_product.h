#pragma once

// The product of matrices in float32 by oneDNN, which LibTorch's builds have beside another library
// for it. MKL, the other one in PyTorch's wheels, keeps AVX-512 for Intel's processors: on others
// oneDNN's product is twice as fast (benchmarks/README.md).
//
// LibTorch calls it by the operator mkldnn::_linear_pointwise, which has no backward pass; here it
// gets one, of any order.
//
// Thread safety: that of LibTorch's products.

#include <ATen/core/Tensor.h>

namespace paceline::models {

// Whether it is there and the faster one: LibTorch multiplies by MKL and the processor is not
// Intel's. The same for the whole process.
bool prefers_one_dnn_product();

// [rows, features] times the transposed [outputs, features], plus [outputs] or undefined -> [rows,
// outputs]. Requires: prefers_one_dnn_product(); float32 on the CPU; each of the matrices or its
// transpose contiguous.
at::Tensor one_dnn_product(const at::Tensor& rows, const at::Tensor& weight,
                           const at::Tensor& bias = {});

}  // namespace paceline::models
