#pragma once

// The division that turns a sum into a mean, for libraries that only add up.

#include <cstddef>

#include "paceline/core/dtype.h"

namespace paceline {

// In place. Requires: a floating-point type. Thread safety: pure.
void divide(std::byte* data, std::size_t count, Dtype dtype, int divisor);

}  // namespace paceline
