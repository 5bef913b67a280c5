#pragma once

// The matrix product for a few rows: each weight is read from memory once. A pure function, in a
// file with compile options of its own.

#include <cstdint>

namespace paceline::models {

// Multiplies row-major `rows` [num_rows, features] with the rows `begin` to `end` of `weight`
// [outputs, features], into the same columns of `results` [num_rows, outputs]. Reads the weight
// once, whatever the number of rows, so a few rows take as long as memory needs to deliver it. The
// bits of a product depend neither on the other rows nor on the instruction set.
void multiply_rows(const float* rows, std::int64_t num_rows, const float* weight,
                   std::int64_t features, std::int64_t outputs, std::int64_t begin,
                   std::int64_t end, float* results);

}  // namespace paceline::models
