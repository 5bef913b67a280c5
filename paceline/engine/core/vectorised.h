#pragma once

// GCC compiles a function marked PACELINE_VECTORISED once per instruction set and the loader picks;
// elsewhere the portable code serves. The loader picks before the thread sanitizer has begun, which
// crashes in what it picks with.

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define PACELINE_VECTORISED \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define PACELINE_VECTORISED
#endif
