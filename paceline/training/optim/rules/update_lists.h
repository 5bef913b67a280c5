#pragma once

// Parameters on a CUDA device that an update rule (update_rules.h) updates at a time, with
// LibTorch's operations on lists of tensors.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace paceline::optim {

// The elements of parameters that this rank updates, each as a float32 row: the parameter (the
// master of a 16-bit one), its gradient, and its states. All are in one group and take the same
// step.
struct UpdateLists {
  std::vector<at::Tensor> parameters, gradients;
  std::array<std::vector<at::Tensor>, 2> states;
  std::vector<at::Tensor> norms;  // [parameter]: two float64 norms of the whole parameter, if asked
  std::int64_t step = 0;          // as UpdateSlice::step
  std::size_t group = 0;
};

}  // namespace paceline::optim
