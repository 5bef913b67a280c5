#pragma once

// Resizing, byte for byte like Pillow's BILINEAR with its anti-aliasing: a triangle filter whose
// half-width is the size of a result's pixel in the source, but at least one pixel. It is applied
// first along the rows, then along the columns, with weights of 22 bits, and the values are rounded
// to bytes after each. A window of the result can be computed alone.
//
// Thread safety: values and free functions.

#include <cstdint>
#include <vector>

#include "paceline/files/images/image.h"

namespace paceline::images {

// The resizing of one side: output i is the sum of weights[i * num_taps + t] times input begins[i]
// + t, for t < counts[i].
struct AxisPlan {
  std::vector<int> begins, counts;
  std::vector<std::int32_t> weights;  // 1 is stored as 2^22
  int num_taps = 0;
  int first_input = 0, end_input = 0;  // the inputs of all outputs together

  int size() const { return static_cast<int>(begins.size()); }
};

// Plans to resize the part [from, to) of an input of `input_size` pixels to `output_size` pixels.
// Only the pixels in [first, first + count) of the output are computed. Requires: 0 <= from < to <=
// input_size.
AxisPlan plan_axis(int input_size, double from, double to, int output_size, int first, int count);

// Resizes by both plans. `part` begins at pixel (x, y) of the planned input, and covers all inputs
// of the plans.
Image resample(const Image& part, int x, int y, const AxisPlan& columns, const AxisPlan& rows);

// Resizes the whole image. Throws Error(kInvalid) for an empty image or size.
Image resize(const Image& image, Size size);

}  // namespace paceline::images
