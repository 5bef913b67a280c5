#pragma once

// Sums of the words of tensors, as kernels.h has them, with LibTorch's intra-op threads.

#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "paceline/engine/core/dtype.h"

namespace paceline::optim {

std::uint32_t sum_of(Dtype type, const std::byte* values, std::int64_t count);
// Requires: dense, on the CPU, with elements of 16 or 32 bits.
std::uint32_t sum_of(const at::Tensor& tensor);

}  // namespace paceline::optim
