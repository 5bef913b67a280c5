#include "paceline/engine/core/simd.h"
#include "paceline/training/parallel/vectorised_loops.h"

namespace paceline {
namespace {

// Values that are looked at between two questions whether one was found.
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

}  // namespace paceline
