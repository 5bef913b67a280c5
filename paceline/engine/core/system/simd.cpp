#include "paceline/engine/core/system/simd.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace paceline {

namespace {

std::size_t read_cache_bytes() {
  constexpr std::size_t kUnknown = 32 << 20;
  for (const int index : {3, 2}) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) +
                       "/size");
    std::size_t kilobytes = 0;
    char unit = 0;
    if (file >> kilobytes >> unit && unit == 'K' && kilobytes > 0) return kilobytes << 10;
  }
  return kUnknown;
}

}  // namespace

std::size_t last_level_cache_bytes() {
  static const std::size_t bytes = read_cache_bytes();
  return bytes;
}

#if defined(__x86_64__)

namespace {

// `ahead`: the distance from the bytes that are copied to the bytes that are prefetched, which will
// be copied next.
void stream(std::byte* to, const std::byte* from, std::size_t bytes, std::ptrdiff_t ahead) {
  constexpr std::size_t kLine = 64;
  const std::size_t head =
      std::min((kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine, bytes);
  const std::size_t body = (bytes - head) / kLine * kLine;
  if (head > 0) std::memcpy(to, from, head);
  // Only whole lines are streamed: a partial line would have to be read first.
  for (std::size_t at = head; at < head + body; at += kLine) {
    _mm_prefetch(reinterpret_cast<const char*>(from + at) + ahead, _MM_HINT_T0);
    const auto* source = reinterpret_cast<const __m128i*>(from + at);
    auto* target = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1),
                  c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  const std::size_t done = head + body;
  if (done < bytes) std::memcpy(to + done, from + done, bytes - done);
}

}  // namespace

void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes) {
  stream(to, from, bytes, 0);
  _mm_sfence();
}

void copy_rows_past_caches(std::byte* to, const std::byte* from, std::size_t bytes,
                           std::size_t rows, RowDistance distance) {
  constexpr std::size_t kAhead = 4 << 10;
  const std::size_t rows_ahead = 1 + kAhead / (bytes + 1);
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t next = std::min(row + rows_ahead, rows - 1);
    const auto at = static_cast<std::ptrdiff_t>(row);
    stream(to + at * distance.to, from + at * distance.from, bytes,
           static_cast<std::ptrdiff_t>(next - row) * distance.from);
  }
  _mm_sfence();
}

#else

void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void copy_rows_past_caches(std::byte* to, const std::byte* from, std::size_t bytes,
                           std::size_t rows, RowDistance distance) {
  for (std::size_t row = 0; row < rows; ++row) {
    const auto at = static_cast<std::ptrdiff_t>(row);
    copy_past_caches(to + at * distance.to, from + at * distance.from, bytes);
  }
}

#endif

}  // namespace paceline
