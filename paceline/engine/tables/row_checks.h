#pragma once

// Checks of a batch before anything is done with it. All throw Error(kInvalid).
//
// Thread safety: pure functions.

#include <cstddef>
#include <span>
#include <string>

#include "paceline/engine/tables/row_options.h"

namespace paceline::tables {

// The worker and its operation, as error messages name them.
struct BatchUse {
  const std::string& worker;
  const char* operation;
  const std::string& table;
  std::uint32_t width = 0;
};

// The number of floats must be that of the ids times the width.
void check_size(const BatchUse& use, std::size_t num_ids, std::size_t num_floats);
// Names the first row whose gradient is not finite.
void check_finite(const BatchUse& use, std::span<const Id> ids, std::span<const float> gradients);

}  // namespace paceline::tables
