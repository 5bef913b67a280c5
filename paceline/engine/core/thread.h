#pragma once

// A named std::jthread: the name shows in gdb, top -H and /proc. Joined when it goes out of scope.

#include <string>
#include <thread>
#include <utility>

#include <pthread.h>

namespace paceline {

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

}  // namespace paceline
