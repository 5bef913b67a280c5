#include "paceline/training/models/row_products.h"

#include <array>
#include <cstddef>

#include "paceline/engine/core/system/simd.h"

namespace paceline::models {
namespace {

constexpr std::size_t kLanes = 16;  // partial sums of a product, computed in parallel lanes
// The number of products that are computed at the same time, from rows of the weight that are far
// apart, and the distance by which each row is prefetched (1 KiB): with fewer reads in flight, one
// core does not reach the full memory bandwidth.
constexpr std::size_t kStreams = 4;
constexpr std::size_t kAhead = 256;

// Returns the products of `row` with kCount rows of the weight that are `distance` apart. Inlined,
// so that it is compiled for each instruction set.
template <std::size_t kCount>
[[gnu::always_inline]] inline std::array<float, kCount> products(const float* row,
                                                                 const float* weight,
                                                                 std::size_t distance,
                                                                 std::size_t features) {
  std::array<std::array<float, kLanes>, kCount> lanes{};
  std::size_t i = 0;
  for (; i + kLanes <= features; i += kLanes) {
    for (std::size_t stream = 0; stream < kCount; ++stream) {
      const float* const place = weight + stream * distance + i;
      __builtin_prefetch(place + kAhead, 0, 2);
      for (std::size_t lane = 0; lane < kLanes; ++lane)
        lanes[stream][lane] += row[i + lane] * place[lane];
    }
  }
  std::array<float, kCount> sums{};
  for (std::size_t stream = 0; stream < kCount; ++stream) {
    auto& own = lanes[stream];
    for (std::size_t rest = i; rest < features; ++rest)
      own[rest - i] += row[rest] * weight[stream * distance + rest];
    for (std::size_t half = kLanes / 2; half > 0; half /= 2)
      for (std::size_t lane = 0; lane < half; ++lane) own[lane] += own[lane + half];
    sums[stream] = own[0];
  }
  return sums;
}

}  // namespace

PACELINE_VECTORISED
void multiply_rows(const float* rows, std::int64_t num_rows, const float* weight,
                   std::int64_t features, std::int64_t outputs, std::int64_t begin,
                   std::int64_t end, float* results) {
  const auto count = static_cast<std::size_t>(features);
  const std::int64_t each = (end - begin) / static_cast<std::int64_t>(kStreams);
  for (std::int64_t output = begin; output < begin + each; ++output) {
    for (std::int64_t row = 0; row < num_rows; ++row) {
      float* place = results + row * outputs + output;
      for (const float sum : products<kStreams>(rows + row * features, weight + output * features,
                                                static_cast<std::size_t>(each) * count, count)) {
        *place = sum;
        place += each;
      }
    }
  }
  for (std::int64_t output = begin + each * static_cast<std::int64_t>(kStreams); output < end;
       ++output) {
    for (std::int64_t row = 0; row < num_rows; ++row) {
      results[row * outputs + output] =
          products<1>(rows + row * features, weight + output * features, 0, count)[0];
    }
  }
}

}  // namespace paceline::models
