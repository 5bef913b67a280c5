#pragma once

// The two loops of resample.h. Each source that includes this file compiles them for its own
// instruction set. All these versions give the same bits, because they add integers.

#include <cstdint>
#include <cstring>

namespace paceline::images {

struct RowKernels {
  // Resizes two rows of pixels at a time. Each pixel has 3 bytes; weights and begins are as in
  // AxisPlan. Four bytes are read and written at each pixel, so input and output need one byte
  // after the last pixel.
  void (*along_rows)(const std::uint8_t* first, const std::uint8_t* second, std::uint8_t* first_out,
                     std::uint8_t* second_out, const int* begins, const int* counts,
                     const std::int32_t* weights, int num_taps, int count);
  // out[i] = sum of weights[t] * rows[t][i], for i < num_bytes; `stride` bytes from row to row.
  void (*along_columns)(const std::uint8_t* rows, std::ptrdiff_t stride,
                        const std::int32_t* weights, int num_taps, std::uint8_t* out,
                        std::ptrdiff_t num_bytes);
};

namespace portable {
extern const RowKernels kRowKernels;
}
namespace avx2 {
extern const RowKernels kRowKernels;
}

}  // namespace paceline::images

#ifdef PACELINE_ROW_KERNELS

namespace paceline::images::PACELINE_ROW_KERNELS {
namespace {

constexpr int kWeightBits = 22;
constexpr std::int32_t kHalf = 1 << (kWeightBits - 1);
constexpr std::ptrdiff_t kChannels = 3;
constexpr std::ptrdiff_t kWidth = 8;  // elements of a vector

using Bytes8 [[gnu::vector_size(8)]] = std::uint8_t;
using Ints8 [[gnu::vector_size(32)]] = std::int32_t;

inline std::uint8_t rounded(std::int32_t sum) {
  sum >>= kWeightBits;
  return static_cast<std::uint8_t>(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

void along_rows(const std::uint8_t* first, const std::uint8_t* second, std::uint8_t* first_out,
                std::uint8_t* second_out, const int* begins, const int* counts,
                const std::int32_t* weights, int num_taps, int count) {
  for (int i = 0; i < count; ++i, weights += num_taps) {
    const std::ptrdiff_t at = kChannels * begins[i];
    Ints8 sums = {kHalf, kHalf, kHalf, kHalf, kHalf, kHalf, kHalf, kHalf};
    for (int tap = 0; tap < counts[i]; ++tap) {
      Bytes8 bytes;
      std::memcpy(&bytes, first + at + kChannels * tap, 4);
      std::memcpy(reinterpret_cast<char*>(&bytes) + 4, second + at + kChannels * tap, 4);
      sums += __builtin_convertvector(bytes, Ints8) * weights[tap];
    }
    // The weights are not negative and, except for rounding, their sum is 1, so the result is at
    // most 255.
    const Bytes8 out = __builtin_convertvector(sums >> kWeightBits, Bytes8);
    std::memcpy(first_out + kChannels * i, &out, 4);
    std::memcpy(second_out + kChannels * i, reinterpret_cast<const char*>(&out) + 4, 4);
  }
}

void along_columns(const std::uint8_t* rows, std::ptrdiff_t stride, const std::int32_t* weights,
                   int num_taps, std::uint8_t* out, std::ptrdiff_t num_bytes) {
  constexpr std::ptrdiff_t kBlock = 32;
  std::ptrdiff_t i = 0;
  for (; i + kBlock <= num_bytes; i += kBlock) {
    Ints8 sums[4] = {Ints8{} + kHalf, Ints8{} + kHalf, Ints8{} + kHalf, Ints8{} + kHalf};
    for (int tap = 0; tap < num_taps; ++tap) {
      for (int part = 0; part < 4; ++part) {
        Bytes8 bytes;
        std::memcpy(&bytes, rows + tap * stride + i + kWidth * part, sizeof bytes);
        sums[part] += __builtin_convertvector(bytes, Ints8) * weights[tap];
      }
    }
    for (int part = 0; part < 4; ++part) {
      const Bytes8 bytes = __builtin_convertvector(sums[part] >> kWeightBits, Bytes8);
      std::memcpy(out + i + kWidth * part, &bytes, sizeof bytes);
    }
  }
  for (; i < num_bytes; ++i) {
    std::int32_t sum = kHalf;
    for (int tap = 0; tap < num_taps; ++tap) sum += rows[tap * stride + i] * weights[tap];
    out[i] = rounded(sum);
  }
}

}  // namespace

const RowKernels kRowKernels = {along_rows, along_columns};

}  // namespace paceline::images::PACELINE_ROW_KERNELS

#endif
