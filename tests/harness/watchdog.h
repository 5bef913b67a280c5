#pragma once

// Ends the test program with a message when a scope takes too long: a hang must fail, not block.

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

#include "paceline/engine/core/system/thread.h"

namespace paceline::harness {

class Watchdog {
 public:
  Watchdog(std::chrono::milliseconds limit, std::string what) {
    thread_ = start_thread("watchdog", [this, limit, what = std::move(what)] {
      std::unique_lock lock(mutex_);
      if (!ended_.wait_for(lock, limit, [&] { return done_; })) {
        std::fprintf(stderr, "watchdog: %s hung for %lld ms\n", what.c_str(),
                     static_cast<long long>(limit.count()));
        std::abort();
      }
    });
  }
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    ended_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
  std::jthread thread_;
};

}  // namespace paceline::harness
