#pragma once

// Tensors that claim to be on a GPU, for machines without one: their memory is the host's. Code
// that only inspects tensors, and a test's own backend, can use them; LibTorch's operators cannot.

#include <vector>

#include <ATen/ATen.h>

namespace paceline {

// Requires: `data` outlives the tensor.
inline at::Tensor cuda_tensor(std::vector<float>& data, c10::DeviceIndex index = 0) {
  const c10::Device device(c10::kCUDA, index);
  return at::for_blob(data.data(), {static_cast<std::int64_t>(data.size())})
      .options(at::TensorOptions(at::kFloat).device(device))
      .target_device(device)
      .make_tensor();
}

}  // namespace paceline
