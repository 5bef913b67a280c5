// The kernel for AVX-512: sixteen floats at a time. Its conversions from and to 16-bit floats give
// the same bits as those of elements.h. For float16 it uses the processor's VCVTPH2PS and
// VCVTPS2PH, which do not flush subnormal numbers to zero, whatever the thread's mode. It does not
// use the conversions of AVX-512 BF16 (kernels/reduce.h).
#define PACELINE_KERNEL avx512

#include <cstddef>

#include <immintrin.h>

#include "paceline/engine/collectives/kernels/elements.h"

namespace paceline::PACELINE_KERNEL {
namespace {

typedef float Lanes __attribute__((vector_size(64)));
constexpr std::size_t kLanes = 16;

Lanes load(const float* from) { return _mm512_loadu_ps(from); }
Lanes load(const Half* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
Lanes load(const Brain* from) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

void store(Lanes value, float* to) { _mm512_storeu_ps(to, value); }
// The conversion keeps the upper part of a NaN's payload, so this function clears the payload
// first: (bits & sign) | quiet NaN.
void store(Lanes value, Half* to) {
  constexpr int kAndOr = 0xea;
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  const __m512i bits = _mm512_mask_ternarylogic_epi32(
      _mm512_castps_si512(value), nan, _mm512_set1_epi32(static_cast<int>(0x80000000u)),
      _mm512_set1_epi32(0x7fc00000), kAndOr);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtps_ph(_mm512_castsi512_ps(bits), _MM_FROUND_TO_NEAREST_INT));
}
void store(Lanes value, Brain* to) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  const __m512i rounded =
      _mm512_mask_or_epi32(_mm512_add_epi32(bits, half), nan, bits, _mm512_set1_epi32(0x400000));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}

}  // namespace
}  // namespace paceline::PACELINE_KERNEL

#include "paceline/engine/collectives/kernels/reduce_kernel.h"
