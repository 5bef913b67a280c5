#pragma once

// Resizing, as Pillow's BILINEAR with its anti-aliasing, byte for byte: a triangle as wide as the
// pixels of the result are in the source, first along the rows, then along the columns, each with
// weights of 22 bits and rounded to a byte. A window of the result can be computed alone.
//
// Thread safety: values and free functions.

#include <cstdint>
#include <vector>

#include "paceline/files/images/image.h"

namespace paceline::images {

// How one side is resized: output i is the sum of weights[i * num_taps + t] times input
// begins[i] + t, for t < counts[i].
struct AxisPlan {
  std::vector<int> begins, counts;
  std::vector<std::int32_t> weights;  // of 2^22
  int num_taps = 0;
  int first_input = 0, end_input = 0;  // what all outputs together take

  int size() const { return static_cast<int>(begins.size()); }
};

// The part [from, to) of an input of `input_size` pixels becomes `output_size` pixels, of which
// those in [first, first + count) are wanted. Requires: 0 <= from < to <= input_size.
AxisPlan plan_axis(int input_size, double from, double to, int output_size, int first, int count);

// `part` begins at pixel (x, y) of the input that the plans are for, and has what they take.
Image resample(const Image& part, int x, int y, const AxisPlan& columns, const AxisPlan& rows);

// All of `image`, to `size`. Error(kInvalid) for an empty image or size.
Image resize(const Image& image, Size size);

}  // namespace paceline::images
