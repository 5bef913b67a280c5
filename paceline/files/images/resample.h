#pragma once

// Resizing, byte for byte like Pillow's BILINEAR with its anti-aliasing: a triangle filter whose
// half-width is the size of an output pixel measured in source pixels, but at least 1. The filter
// is applied along the rows first, then along the columns, with fixed-point weights of 22
// fractional bits; the values are rounded to bytes after each pass. Any window of the output can be
// computed on its own.
//
// Thread safety: values and pure functions.

#include <cstdint>
#include <vector>

#include "paceline/files/images/image.h"

namespace paceline::images {

// The resizing along one axis: output[i] is the sum of
// weights[i * num_taps + t] * input[begins[i] + t] over 0 <= t < counts[i].
struct AxisPlan {
  std::vector<int> begins, counts;
  std::vector<std::int32_t> weights;  // 1 is stored as 2^22
  int num_taps = 0;
  int first_input = 0, end_input = 0;  // the outputs read the inputs [first_input, end_input)

  int size() const { return static_cast<int>(begins.size()); }
};

// Plans the resizing of the part [from, to) of `input_size` pixels to `output_size` pixels.
// Only the pixels in [first, first + count) of the output are computed. Requires: 0 <= from < to <=
// input_size.
AxisPlan plan_axis(int input_size, double from, double to, int output_size, int first, int count);

// Resizes along both axes. `part` begins at pixel (x, y) of the input for which the plans were
// made, and contains every pixel that they read.
Image resample(const Image& part, int x, int y, const AxisPlan& columns, const AxisPlan& rows);

// Resizes the whole image. Throws Error(kInvalid) for an empty image or size.
Image resize(const Image& image, Size size);

}  // namespace paceline::images
