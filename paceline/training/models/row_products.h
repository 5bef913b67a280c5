#pragma once

// Thread safety: pure function.

#include <cstdint>

namespace paceline::models {

// Of row-major `rows` [num_rows, features] and `weight` [outputs, features]: the products of each
// row with the rows `begin` to `end` of the weight, into the same columns of `results` [num_rows,
// outputs]. Reads the weight once, whatever the number of rows: as fast as memory is, where there
// are few. The bits of a product depend neither on the other rows nor on the instruction set.
void multiply_rows(const float* rows, std::int64_t num_rows, const float* weight,
                   std::int64_t features, std::int64_t outputs, std::int64_t begin,
                   std::int64_t end, float* results);

}  // namespace paceline::models
