// The kernel for AVX2 and F16C: eight floats at a time. Its conversions from and to 16-bit floats
// give the same bits as those of elements.h.
#define PACELINE_KERNEL avx2

#include <cstddef>

#include <immintrin.h>

#include "paceline/engine/collectives/kernels/elements.h"

namespace paceline::PACELINE_KERNEL {
namespace {

typedef float Lanes __attribute__((vector_size(32)));
constexpr std::size_t kLanes = 8;

Lanes load(const float* from) { return _mm256_loadu_ps(from); }
Lanes load(const Half* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
Lanes load(const Brain* from) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

void store(Lanes value, float* to) { _mm256_storeu_ps(to, value); }
// The conversion keeps the upper part of a NaN's payload, so this function clears it.
void store(Lanes value, Half* to) {
  const __m128i bits = _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
  const __m128i magnitude = _mm_and_si128(bits, _mm_set1_epi16(0x7fff));
  const __m128i nan = _mm_cmpgt_epi16(magnitude, _mm_set1_epi16(0x7c00));
  const __m128i payload = _mm_and_si128(nan, _mm_set1_epi16(0x1ff));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_andnot_si128(payload, bits));
}
void store(Lanes value, Brain* to) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  const __m256 rounded = _mm256_castsi256_ps(_mm256_add_epi32(bits, half));
  const __m256 quiet = _mm256_castsi256_ps(_mm256_or_si256(bits, _mm256_set1_epi32(0x400000)));
  const __m256 nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
  const __m256i chosen = _mm256_castps_si256(_mm256_blendv_ps(rounded, quiet, nan));
  const __m256i upper = _mm256_srli_epi32(chosen, 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(upper, upper), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
}

}  // namespace
}  // namespace paceline::PACELINE_KERNEL

#include "paceline/engine/collectives/kernels/reduce_kernel.h"
