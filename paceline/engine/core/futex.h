#pragma once

// Sleeping on a word of memory that several processes may share (Linux futex). The word carries the
// state; the futex only saves the waiter from spinning. Spurious returns are allowed: the caller
// loops on its own condition.

#include <atomic>
#include <chrono>
#include <cstdint>

namespace paceline {

// Sleeps while `word` equals `expected`, at most for `timeout`.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                std::chrono::nanoseconds timeout);
// Wakes every waiter, in every process that maps the word.
void futex_wake_all(const std::atomic<std::uint32_t>& word);

// Tells the processor that this is a spin loop.
inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

}  // namespace paceline
