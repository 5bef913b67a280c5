#pragma once

// Named threads, and waiting on a word that several processes may share (futex).

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>

#include <pthread.h>

namespace paceline {

// A named std::jthread: the name shows in gdb, top -H and /proc. Joined when it goes out of scope.
// Requires: `name` has at most 15 characters (the kernel's limit). `body` must not throw.
template <class Body>
std::jthread start_thread(std::string name, Body body) {
  return std::jthread(
      [name = std::move(name), body = std::move(body)](std::stop_token stop) mutable {
        pthread_setname_np(pthread_self(), name.c_str());
        if constexpr (std::is_invocable_v<Body, std::stop_token>) {
          body(stop);
        } else {
          body();
        }
      });
}

// The futex of Linux. The state is in the word itself, which callers check in a loop, because
// wake-ups may be spurious.

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
