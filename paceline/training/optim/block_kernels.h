#pragma once

// Loops over blocks of floats: sums of powers for norms, factors, and 16-bit floats from and to
// float32. Like kernels.h they depend on no LibTorch.
//
// A sum of squares has the same bits on every instruction set: squares of float32 numbers are exact
// in float64, and the order of the additions is fixed. Element i is added to lane i mod 16, and the
// 16 lanes are added as a balanced tree.

#include <cstddef>
#include <cstdint>

#include "paceline/engine/core/dtype.h"

namespace paceline::optim {

// Elements of which a norm's partial sums are made.
constexpr std::int64_t kBlock = 1024;

double sum_of_squares(const float* values, std::int64_t count);
double sum_of_magnitudes(const float* values, std::int64_t count);
// Of |value|^power.
double sum_of_powers(const float* values, std::int64_t count, double power);
// NaN when one is NaN.
double largest_magnitude(const float* values, std::int64_t count);

bool all_finite(const float* values, std::int64_t count);
void scale(float* values, std::int64_t count, float factor);
// NaN stays.
void clamp(float* values, std::int64_t count, float largest_magnitude);

// `type` is kBfloat16 or kFloat16. Rounding is to nearest, ties to even.
void widen(Dtype type, const void* from, float* to, std::int64_t count);
// Sums as kernels.h has them: 32-bit words of float32 values, 16-bit words of others.
std::uint32_t sum_words(Dtype type, const void* values, std::int64_t count);
struct MasterSums {
  std::uint32_t master = 0;
  std::uint32_t parameter = 0;
};
// Returns the sums of `from` and of `to`, as it is then.
MasterSums narrow(Dtype type, const float* from, void* to, std::int64_t count);
// Where rounding `master` does not give `parameter`, the master becomes the parameter. Returns the
// sums of both before.
MasterSums follow(Dtype type, const void* parameter, float* master, std::int64_t count);

}  // namespace paceline::optim
