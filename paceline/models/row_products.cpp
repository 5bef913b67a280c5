#include "paceline/models/row_products.h"

#include <array>

#include "paceline/core/vectorised.h"

namespace paceline::models {
namespace {

constexpr std::int64_t kLanes = 64;  // so many sums at once hide the time of an addition

inline float product(const float* left, const float* right, std::int64_t count) {
  std::array<float, kLanes> lanes{};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane)
      lanes[static_cast<std::size_t>(lane)] += left[i + lane] * right[i + lane];
  }
  for (std::size_t lane = 0; i < count; ++i, ++lane) lanes[lane] += left[i] * right[i];
  for (std::size_t half = kLanes / 2; half > 0; half /= 2)
    for (std::size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  return lanes[0];
}

}  // namespace

PACELINE_VECTORISED
void multiply_rows(const float* rows, std::int64_t num_rows, const float* weight,
                   std::int64_t features, std::int64_t outputs, std::int64_t begin,
                   std::int64_t end, float* results) {
  for (std::int64_t output = begin; output < end; ++output) {
    for (std::int64_t row = 0; row < num_rows; ++row) {
      results[row * outputs + output] =
          product(rows + row * features, weight + output * features, features);
    }
  }
}

}  // namespace paceline::models
