#pragma once

// The elements that an update rule (update_rules.h) gets at a time, and the norms of their
// parameter.

#include <array>
#include <cstddef>
#include <cstdint>

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

}  // namespace paceline::optim
