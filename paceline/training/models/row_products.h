#pragma once

// The matrix product for a few rows: each weight is read from memory once. A pure function, in a
// source file with its own compile options.

#include <cstdint>

namespace paceline::models {

// Multiplies row-major `rows` [num_rows, features] with the rows [begin, end) of `weight` [outputs,
// features], and writes the columns [begin, end) of `results` [num_rows, outputs]. Reads the weight
// once for all rows, so a product of a few rows takes as long as reading the weight. The bits of a
// product depend neither on the other rows nor on the instruction set.
void multiply_rows(const float* rows, std::int64_t num_rows, const float* weight,
                   std::int64_t features, std::int64_t outputs, std::int64_t begin,
                   std::int64_t end, float* results);

}  // namespace paceline::models
