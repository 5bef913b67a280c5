#pragma once

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <mutex>

#include "tests/files/checkpoint/real_file_system.h"

namespace paceline::testing {

// A disk whose fsync() blocks between hold() and let_go(), or fails.
class SlowFileSystem final : public RealFileSystem {
 public:
  void hold() { held_ = true; }
  void let_go() {
    {
      const std::lock_guard lock(mutex_);
      held_ = false;
    }
    changed_.notify_all();
  }
  void fail_from_now_on(bool fails) { fails_ = fails; }

  int fsync(int) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !held_; });
    errno = EIO;
    return fails_ ? -1 : 0;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
  std::atomic<bool> fails_{false};
};

}  // namespace paceline::testing
