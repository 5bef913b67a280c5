#pragma once

// Vector instructions: functions that are compiled for several instruction sets, and copies that
// leave the caches alone. Thread safety: pure functions.

#include <cstddef>

// GCC compiles a function marked PACELINE_VECTORISED once per instruction set and the loader picks;
// elsewhere the portable code serves. The loader picks before the thread sanitizer has begun, which
// crashes in what it picks with.

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define PACELINE_VECTORISED \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define PACELINE_VECTORISED
#endif

namespace paceline {

// Bytes of the last-level cache that this machine's first core uses; 32 MiB where the kernel does
// not say.
std::size_t last_level_cache_bytes();

// memcpy() that leaves the caches alone: stores go to memory without reading the lines first, a
// third less traffic. Pays for what does not fit into the last-level cache (1.1 to 1.5 times as
// fast there, slower below). The C library does so itself only where it knows the cache, which in a
// virtual machine may be a share of the one that it sees. The ranges must not overlap; what was
// written is ordered before this thread's later stores.
void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes);

// As above, for `rows` rows whose beginnings lie so many bytes apart. Each row is asked for ahead
// of its turn, which a processor does by itself only for what follows without a gap: twice as fast
// as memcpy() for rows of 1 KiB.
struct RowDistance {
  std::ptrdiff_t to = 0, from = 0;
};
void copy_rows_past_caches(std::byte* to, const std::byte* from, std::size_t bytes,
                           std::size_t rows, RowDistance distance);

}  // namespace paceline
