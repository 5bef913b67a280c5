#include "paceline/training/parallel/reducer/vectorised_loops.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "paceline/engine/core/system/simd.h"

namespace paceline {

namespace {

// The number of values between two checks for a value that is not finite.
constexpr std::size_t kBlock = 4096;

template <class Word>
[[gnu::always_inline]] inline bool has_non_finite(const Word* values, std::size_t count,
                                                  Word exponent) {
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t end = count - begin < kBlock ? count : begin + kBlock;
    Word largest = 0;
    for (std::size_t i = begin; i < end; ++i) {
      const Word masked = values[i] & exponent;
      largest = masked > largest ? masked : largest;
    }
    if (largest == exponent) return true;
  }
  return false;
}

constexpr std::int64_t kLanes = 8;

// Element i is added to lane i mod 8; then the lanes are added in order.
double dot(const double* a, const double* b, std::int64_t count) {
  double lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  }
  for (std::int64_t lane = 0; i < count; ++i, ++lane) lanes[lane] += a[i] * b[i];
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

void subtract(double* from, double factor, const double* what, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) from[i] -= factor * what[i];
}

}  // namespace

PACELINE_VECTORISED
bool has_non_finite_32(const std::uint32_t* values, std::size_t count) {
  return has_non_finite<std::uint32_t>(values, count, 0x7f800000U);
}

PACELINE_VECTORISED
bool has_non_finite_64(const std::uint64_t* values, std::size_t count) {
  return has_non_finite<std::uint64_t>(values, count, 0x7ff0000000000000U);
}

PACELINE_VECTORISED
bool has_non_finite_16(const std::uint16_t* values, std::size_t count, std::uint16_t exponent) {
  return has_non_finite<std::uint16_t>(values, count, exponent);
}

void orthogonalize(float* matrix, std::int64_t rows, std::int64_t columns, double epsilon) {
  std::vector<double> all(static_cast<std::size_t>(rows * columns));  // in column-major order
  const auto column = [&](std::int64_t i) { return all.data() + i * rows; };
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < columns; ++i)
      column(i)[row] = static_cast<double>(matrix[row * columns + i]);
  }
  for (std::int64_t i = 0; i < columns; ++i) {
    for (int pass = 0; pass < 2; ++pass) {
      for (std::int64_t before = 0; before < i; ++before)
        subtract(column(i), dot(column(before), column(i), rows), column(before), rows);
    }
    const double norm = std::sqrt(dot(column(i), column(i), rows)) + epsilon;
    if (!(norm > 0)) continue;
    for (std::int64_t row = 0; row < rows; ++row) column(i)[row] /= norm;
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < columns; ++i)
      matrix[row * columns + i] = static_cast<float>(column(i)[row]);
  }
}

void multiply_factors(const float* p, const float* q, std::int64_t rows, std::int64_t others,
                      std::int64_t rank, float* product) {
  std::vector<float> transposed(static_cast<std::size_t>(rank * others));
  for (std::int64_t j = 0; j < others; ++j) {
    for (std::int64_t k = 0; k < rank; ++k)
      transposed[static_cast<std::size_t>(k * others + j)] = q[j * rank + k];
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    float* const row = product + i * others;
    std::fill(row, row + others, 0.0f);
    for (std::int64_t k = 0; k < rank; ++k) {
      const float factor = p[i * rank + k];
      const float* const of_q = transposed.data() + k * others;
      for (std::int64_t j = 0; j < others; ++j) row[j] += factor * of_q[j];
    }
  }
}

}  // namespace paceline
