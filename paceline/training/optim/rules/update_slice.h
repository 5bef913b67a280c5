#pragma once

// The elements that an update rule (update_rules.h) gets at a time: a slice of one parameter on the
// CPU with the norms of that parameter, or lists of parameters on a CUDA device, for LibTorch's
// operations on lists of tensors.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/optim_kernels/kernels.h"

namespace paceline::optim {

// Two norms of a whole parameter, or their sums of squares over some of its elements.
struct NormPair : std::array<double, 2> {};

// Elements [0, count) of one parameter. state[i] belongs to the optimizer's state name i; a kernel
// adds the words that it read and wrote to `sums` (kernels.h).
struct UpdateSlice {
  float* parameter;  // the master of a 16-bit parameter
  const float* gradient;
  float* const* state;
  WordSums* sums;
  std::int64_t count;
  std::int64_t step;  // the parameter's step, from 1; steps without a gradient are not counted
  std::size_t group;
};

// The elements of parameters that this rank updates, each as a float32 row: the parameter (the
// master of a 16-bit one), its gradient, and its states. All are in one group and take the same
// step.
struct UpdateLists {
  std::vector<at::Tensor> parameters, gradients;
  std::array<std::vector<at::Tensor>, 2> states;
  std::vector<at::Tensor> norms;  // [parameter]: two float64 norms of it, if the rule needs them
  std::int64_t step = 0;          // as UpdateSlice::step
  std::size_t group = 0;
};

}  // namespace paceline::optim
