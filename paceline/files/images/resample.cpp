#include "paceline/files/images/resample.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "paceline/engine/core/check.h"
#define PACELINE_ROW_KERNELS portable
#include "paceline/files/images/resample_rows.h"

namespace paceline::images {
namespace {

const RowKernels& kernels() {
#ifdef __x86_64__
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) return avx2::kRowKernels;
#endif
  return portable::kRowKernels;
}

// Rounds to the nearest integer; halves are rounded up.
int half_up(double x) { return static_cast<int>(std::floor(x + 0.5)); }

std::size_t first_weight(const AxisPlan& plan, int output) {
  return static_cast<std::size_t>(output) * static_cast<std::size_t>(plan.num_taps);
}

double triangle(double x) { return std::max(0.0, 1.0 - std::abs(x)); }

bool keeps_all(const AxisPlan& plan, int offset, int size) {
  if (plan.size() != size) return false;
  for (int i = 0; i < size; ++i) {
    const std::int32_t* weights = plan.weights.data() + first_weight(plan, i);
    const int own = i + offset - plan.begins[static_cast<std::size_t>(i)];
    if (own < 0 || own >= plan.num_taps || weights[own] != 1 << 22) return false;
  }
  return true;
}

Image along_rows(const Image& part, int x, const AxisPlan& columns) {
  Image out({columns.size(), part.height()});
  std::vector<int> begins = columns.begins;
  for (int& begin : begins) begin -= x;
  // Rows are computed in pairs, into two buffers with slack, because the last store of a row writes
  // past its end; only the pixels are copied to `out`. The last row of an odd height is paired with
  // itself, and the second result is discarded.
  std::vector<std::uint8_t> spare(static_cast<std::size_t>(out.row_bytes()) + Image::kSlack);
  const std::size_t row_bytes = static_cast<std::size_t>(out.row_bytes());
  std::vector<std::uint8_t> first(row_bytes + Image::kSlack);
  for (int y = 0; y < part.height(); y += 2) {
    const bool has_second = y + 1 < part.height();
    kernels().along_rows(part.row(y), part.row(has_second ? y + 1 : y), first.data(), spare.data(),
                         begins.data(), columns.counts.data(), columns.weights.data(),
                         columns.num_taps, columns.size());
    std::copy_n(first.data(), row_bytes, out.row(y));
    if (has_second) std::copy_n(spare.data(), row_bytes, out.row(y + 1));
  }
  return out;
}

Image along_columns(const Image& part, int y, const AxisPlan& rows) {
  Image out({part.width(), rows.size()});
  for (int i = 0; i < rows.size(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    kernels().along_columns(part.row(rows.begins[at] - y), part.row_bytes(),
                            rows.weights.data() + first_weight(rows, i), rows.counts[at],
                            out.row(i), out.row_bytes());
  }
  return out;
}

}  // namespace

AxisPlan plan_axis(int input_size, double from, double to, int output_size, int first, int count) {
  const double scale = (to - from) / output_size;
  const double width = std::max(1.0, scale);  // half the width of the triangle
  AxisPlan plan;
  plan.num_taps = static_cast<int>(std::ceil(width)) * 2 + 1;
  plan.weights.resize(static_cast<std::size_t>(count) * static_cast<std::size_t>(plan.num_taps));
  plan.first_input = std::numeric_limits<int>::max();
  std::vector<double> weights(static_cast<std::size_t>(plan.num_taps));
  for (int i = 0; i < count; ++i) {
    const double center = from + (first + i + 0.5) * scale;
    const int begin = std::max(0, half_up(center - width));
    const int end = std::min(input_size, half_up(center + width));
    double sum = 0;
    for (int input = begin; input < end; ++input) {
      const double weight = triangle((input - center + 0.5) / width);
      weights[static_cast<std::size_t>(input - begin)] = weight;
      sum += weight;
    }
    for (int tap = 0; tap < end - begin; ++tap) {
      double weight = weights[static_cast<std::size_t>(tap)];
      if (sum != 0) weight /= sum;
      plan.weights[first_weight(plan, i) + static_cast<std::size_t>(tap)] =
          half_up(weight * (1 << 22));
    }
    plan.begins.push_back(begin);
    plan.counts.push_back(end - begin);
    plan.first_input = std::min(plan.first_input, begin);
    plan.end_input = std::max(plan.end_input, end);
  }
  return plan;
}

Image resample(const Image& part, int x, int y, const AxisPlan& columns, const AxisPlan& rows) {
  const bool same_columns = keeps_all(columns, x, part.width());
  if (keeps_all(rows, y, part.height())) {
    return along_rows(part, x, columns);
  }
  return same_columns ? along_columns(part, y, rows)
                      : along_columns(along_rows(part, x, columns), y, rows);
}

Image resize(const Image& image, Size size) {
  check(image.width() > 0 && image.height() > 0 && size.width > 0 && size.height > 0,
        "resize: cannot resize {} x {} pixels to {} x {}: every size must be positive",
        image.width(), image.height(), size.width, size.height);
  return resample(image, 0, 0,
                  plan_axis(image.width(), 0, image.width(), size.width, 0, size.width),
                  plan_axis(image.height(), 0, image.height(), size.height, 0, size.height));
}

}  // namespace paceline::images
