#pragma once

// Passes over tensors with LibTorch's intra-op threads: gradients block by block as float32, and
// checksums of words.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/core/dtype_traits.h"

namespace paceline::optim {

// A gradient, or a part of it, in the memory order of its parameter.
struct OrderedGradient {
  std::size_t parameter;   // number of the parameter
  at::Tensor tensor;       // a copy if the gradient has another memory order
  std::int64_t first = 0;  // index of the part's first element, which begins a block
};

// The gradients of the parameters that have one, each tensor once, in the order of the parameters.
// Error(kInvalid) for gradients that are not dense float32, bfloat16 or float16 tensors on the CPU
// or a CUDA device.
std::vector<OrderedGradient> ordered_gradients(const std::vector<at::Tensor>& parameters);
// The gradients themselves, in their own memory order; errors as above.
std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters);

// Calls `visit` for every block of kBlock elements, in parallel, with the block's number and its
// elements as float32. With `writes`, the contents of `values` after the call are written back to
// the gradient. A gradient on a CUDA device is visited in a copy on the host, and for_blocks()
// waits for the device.
using VisitBlock = std::function<void(std::int64_t block, float* values, std::int64_t count)>;
void for_blocks(const at::Tensor& gradient, bool writes, const VisitBlock& visit);

// Sums of words, as sum_words() (kernels.h) computes them.
std::uint32_t sum_of(Dtype type, const std::byte* values, std::int64_t count);
// Requires: `tensor` is dense and on the CPU, with elements of 16 or 32 bits.
std::uint32_t sum_of(const at::Tensor& tensor);

}  // namespace paceline::optim
