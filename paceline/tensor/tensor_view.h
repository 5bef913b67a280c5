#pragma once

// A tensor's elements as the engine's buffers, without a copy.

#include <ATen/core/Tensor.h>

#include "paceline/collectives/buffer.h"

namespace paceline {

// Error(kUnsupported) names the type when the engine has none for it.
Dtype to_dtype(at::ScalarType type);
at::ScalarType to_scalar_type(Dtype dtype);

// True when the tensor's elements fill one range of memory, in whatever order of dimensions
// (contiguous, channels_last, transposed).
bool is_dense(const at::Tensor& tensor);

// All elements in memory order. Requires: is_dense(tensor), a CPU tensor; Error(kInvalid) or
// kUnsupported otherwise. The view is valid as long as the tensor's storage.
Buffer dense_view(const at::Tensor& tensor);

}  // namespace paceline
