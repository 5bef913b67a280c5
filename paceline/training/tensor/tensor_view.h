#pragma once

// A tensor's elements as the engine's buffers, without a copy.

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/backends/backend_list.h"
#include "paceline/engine/collectives/buffer.h"
#include "paceline/engine/collectives/call.h"

namespace paceline {

// Error(kUnsupported) names the type when the engine has none for it.
Dtype to_dtype(at::ScalarType type);
at::ScalarType to_scalar_type(Dtype dtype);

// True when the tensor's elements fill one range of memory, in whatever order of dimensions
// (contiguous, channels_last, transposed).
bool is_dense(const at::Tensor& tensor);

// All elements in memory order, on the CPU or in CUDA memory. Requires: is_dense(tensor);
// Error(kInvalid) otherwise, kUnsupported for other devices. The view is valid as long as the
// tensor's storage.
Buffer dense_view(const at::Tensor& tensor);
// As dense_view. Error(kUnsupported) for tensors off the CPU.
Buffer dense_cpu_view(const at::Tensor& tensor);

// The hash of a tensor's sizes and strides, which ranks compare when they communicate it in the
// order of its memory (shape_of(), engine/collectives/collective.h). Requires: is_dense(tensor).
std::uint32_t shape_of(const at::Tensor& tensor);

// For messages: "Float [2, 3], undefined".
std::string shapes_of(const std::vector<at::Tensor>& tensors);
// "Float [2, 3], strides [1, 2]; ..." of the first eight.
std::string layouts_of(const std::vector<at::Tensor>& tensors);

// The tensors of a call: what it keeps alive, and names in an error.
struct GivenTensors : TensorShapes {
  std::vector<at::Tensor> all;
  std::string describe() const override { return layouts_of(all); }
};

// Whether collectives of a group with this choice reach memory of `device`: Error(kUnsupported)
// that says what is there, and how to choose a backend that does.
void require_backend_for(c10::Device device, const BackendChoice& choice, const std::string& what);

}  // namespace paceline
