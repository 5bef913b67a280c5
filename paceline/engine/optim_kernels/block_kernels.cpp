#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "paceline/engine/core/dtype_traits.h"
#include "paceline/engine/core/system/simd.h"
#include "paceline/engine/optim_kernels/kernels.h"

#define PACELINE_KERNEL optim_elements
#include "paceline/engine/collectives/kernels/elements.h"
#undef PACELINE_KERNEL

namespace paceline::optim {

namespace {

using optim_elements::Brain;
using optim_elements::Half;

constexpr std::int64_t kLanes = 16;

inline double fold(std::array<double, kLanes>& lanes) {
  for (std::size_t half = kLanes / 2; half > 0; half /= 2)
    for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

constexpr std::uint32_t kMagnitude = 0x7fffffffu;
constexpr std::uint32_t kInfinity = 0x7f800000u;

inline std::uint32_t magnitude_of(float value) {
  return std::bit_cast<std::uint32_t>(value) & kMagnitude;
}

inline float follow(float master, auto parameter) {
  decltype(parameter) rounded;
  narrow(master, rounded);
  return rounded.bits == parameter.bits ? master : widen(parameter);
}

}  // namespace

PACELINE_VECTORISED
double sum_of_squares(const float* values, std::int64_t count) {
  std::array<double, kLanes> lanes{};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const double value = values[i + lane];
      lanes[static_cast<std::size_t>(lane)] += value * value;
    }
  }
  for (std::size_t lane = 0; i < count; ++i, ++lane) {
    const double value = values[i];
    lanes[lane] += value * value;
  }
  return fold(lanes);
}

PACELINE_VECTORISED
double sum_of_magnitudes(const float* values, std::int64_t count) {
  std::array<double, kLanes> lanes{};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane)
      lanes[static_cast<std::size_t>(lane)] += std::abs(static_cast<double>(values[i + lane]));
  }
  for (std::size_t lane = 0; i < count; ++i, ++lane)
    lanes[lane] += std::abs(static_cast<double>(values[i]));
  return fold(lanes);
}

double sum_of_powers(const float* values, std::int64_t count, double power) {
  if (power == 2) return sum_of_squares(values, count);
  if (power == 1) return sum_of_magnitudes(values, count);
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i)
    sum += std::pow(std::abs(static_cast<double>(values[i])), power);
  return sum;
}

// Compares the bits of magnitudes, which are ordered like the values; NaNs are the largest.
PACELINE_VECTORISED
double largest_magnitude(const float* values, std::int64_t count) {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, magnitude_of(values[i]));
  return std::bit_cast<float>(largest);
}

PACELINE_VECTORISED
bool all_finite(const float* values, std::int64_t count) {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, magnitude_of(values[i]));
  return largest < kInfinity;
}

PACELINE_VECTORISED
void scale(float* values, std::int64_t count, float factor) {
  for (std::int64_t i = 0; i < count; ++i) values[i] *= factor;
}

PACELINE_VECTORISED
void clamp(float* values, std::int64_t count, float largest_magnitude) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = values[i];
    const float below = value > largest_magnitude ? largest_magnitude : value;
    values[i] = below < -largest_magnitude ? -largest_magnitude : below;
  }
}

PACELINE_VECTORISED
void widen(Dtype type, const void* from, float* __restrict to, std::int64_t count) {
  if (type == Dtype::kBfloat16) {
    const auto* const values = static_cast<const Brain*>(from);
    for (std::int64_t i = 0; i < count; ++i) to[i] = widen(values[i]);
  } else {
    const auto* const values = static_cast<const Half*>(from);
    for (std::int64_t i = 0; i < count; ++i) to[i] = widen(values[i]);
  }
}

PACELINE_VECTORISED
std::uint32_t sum_words(Dtype type, const void* values, std::int64_t count) {
  std::uint32_t sum = 0;
  if (size_of(type) == sizeof(std::uint32_t)) {
    const auto* const words = static_cast<const std::uint32_t*>(values);
    for (std::int64_t i = 0; i < count; ++i) sum += words[i];
  } else {
    const auto* const words = static_cast<const std::uint16_t*>(values);
    for (std::int64_t i = 0; i < count; ++i) sum += words[i];
  }
  return sum;
}

PACELINE_VECTORISED
MasterSums narrow(Dtype type, const float* __restrict from, void* to, std::int64_t count) {
  MasterSums sums;
  if (type == Dtype::kBfloat16) {
    auto* __restrict const values = static_cast<Brain*>(to);
    for (std::int64_t i = 0; i < count; ++i) {
      sums.master += std::bit_cast<std::uint32_t>(from[i]);
      narrow(from[i], values[i]);
      sums.parameter += values[i].bits;
    }
  } else {
    auto* __restrict const values = static_cast<Half*>(to);
    for (std::int64_t i = 0; i < count; ++i) {
      sums.master += std::bit_cast<std::uint32_t>(from[i]);
      narrow(from[i], values[i]);
      sums.parameter += values[i].bits;
    }
  }
  return sums;
}

PACELINE_VECTORISED
MasterSums follow(Dtype type, const void* parameter, float* __restrict master, std::int64_t count) {
  MasterSums sums;
  if (type == Dtype::kBfloat16) {
    const auto* const values = static_cast<const Brain*>(parameter);
    for (std::int64_t i = 0; i < count; ++i) {
      sums.master += std::bit_cast<std::uint32_t>(master[i]);
      sums.parameter += values[i].bits;
      master[i] = follow(master[i], values[i]);
    }
  } else {
    const auto* const values = static_cast<const Half*>(parameter);
    for (std::int64_t i = 0; i < count; ++i) {
      sums.master += std::bit_cast<std::uint32_t>(master[i]);
      sums.parameter += values[i].bits;
      master[i] = follow(master[i], values[i]);
    }
  }
  return sums;
}

}  // namespace paceline::optim
