#pragma once

// The inner loops of the limit (limit.cpp), compiled once for each instruction set, and the same
// loops with stores that bypass the caches. Such stores need whole, aligned cache lines.

#include <cstddef>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace paceline::bench::limit {

struct Kernels {
  void (*add_to)(float* sum, const float* x, std::size_t count);
  void (*add_for_both)(float* a, float* b, std::size_t count);
  void (*add_into)(float* sum, const float* a, const float* b, std::size_t count);
};

[[gnu::always_inline]] inline void add_to_here(float* __restrict sum, const float* __restrict x,
                                               std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) sum[i] += x[i];
}
[[gnu::always_inline]] inline void add_for_both_here(float* __restrict a, float* __restrict b,
                                                     std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) a[i] = b[i] = a[i] + b[i];
}
[[gnu::always_inline]] inline void add_into_here(float* __restrict sum, const float* __restrict a,
                                                 const float* __restrict b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) sum[i] = a[i] + b[i];
}

#define PACELINE_LIMIT_KERNELS(suffix, ...)                                                \
  __VA_ARGS__ inline void add_to_##suffix(float* sum, const float* x, std::size_t count) { \
    add_to_here(sum, x, count);                                                            \
  }                                                                                        \
  __VA_ARGS__ inline void add_for_both_##suffix(float* a, float* b, std::size_t count) {   \
    add_for_both_here(a, b, count);                                                        \
  }                                                                                        \
  __VA_ARGS__ inline void add_into_##suffix(float* sum, const float* a, const float* b,    \
                                            std::size_t count) {                           \
    add_into_here(sum, a, b, count);                                                       \
  }                                                                                        \
  inline constexpr Kernels kKernels_##suffix = {add_to_##suffix, add_for_both_##suffix,    \
                                                add_into_##suffix};

PACELINE_LIMIT_KERNELS(portable)
#if defined(__x86_64__)
PACELINE_LIMIT_KERNELS(avx2, [[gnu::target("avx2")]])
#if defined(__clang__)
PACELINE_LIMIT_KERNELS(avx512, [[gnu::target("avx512f"), clang::min_vector_width(512)]])
#else
PACELINE_LIMIT_KERNELS(avx512, [[gnu::target("avx512f,prefer-vector-width=512")]])
#endif
#endif
#undef PACELINE_LIMIT_KERNELS

inline Kernels choose_kernels() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return kKernels_avx512;
  if (__builtin_cpu_supports("avx2")) return kKernels_avx2;
#endif
  return kKernels_portable;
}

#if defined(__x86_64__)
inline constexpr bool kCanStream = true;

// Calls `body(i)` for the index of every fourth element, beginning with 0.
template <class Body>
void stream(std::size_t count, Body body) {
  for (std::size_t i = 0; i < count; i += 4) body(i);
  _mm_sfence();
}
inline void stream_add_for_both(float* a, float* b, std::size_t count) {
  stream(count, [=](std::size_t i) {
    const __m128 sum = _mm_add_ps(_mm_load_ps(a + i), _mm_load_ps(b + i));
    _mm_stream_ps(a + i, sum);
    _mm_stream_ps(b + i, sum);
  });
}
inline void stream_add_into(float* sum, const float* a, const float* b, std::size_t count) {
  stream(count, [=](std::size_t i) {
    _mm_stream_ps(sum + i, _mm_add_ps(_mm_load_ps(a + i), _mm_load_ps(b + i)));
  });
}
inline void stream_copy(float* to, const float* from, std::size_t count) {
  stream(count, [=](std::size_t i) { _mm_stream_ps(to + i, _mm_load_ps(from + i)); });
}
inline void stream_copy_to_both(float* a, float* b, const float* from, std::size_t count) {
  stream(count, [=](std::size_t i) {
    const __m128 value = _mm_load_ps(from + i);
    _mm_stream_ps(a + i, value);
    _mm_stream_ps(b + i, value);
  });
}
#else
inline constexpr bool kCanStream = false;
inline void stream_add_for_both(float* a, float* b, std::size_t count) {
  add_for_both_here(a, b, count);
}
inline void stream_add_into(float* sum, const float* a, const float* b, std::size_t count) {
  add_into_here(sum, a, b, count);
}
inline void stream_copy(float* to, const float* from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] = from[i];
}
inline void stream_copy_to_both(float* a, float* b, const float* from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) a[i] = b[i] = from[i];
}
#endif

}  // namespace paceline::bench::limit
