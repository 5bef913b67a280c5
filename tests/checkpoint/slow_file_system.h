#pragma once

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <string>

#include "paceline/checkpoint/file_system.h"

namespace paceline::testing {

// A disk whose fsync takes until it is let go, or fails.
class SlowFileSystem final : public FileSystem {
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

  int open(const std::string& path, int flags, mode_t mode) override {
    return real().open(path, flags, mode);
  }
  ssize_t read_at(int fd, off_t position, std::span<std::byte> bytes) override {
    return real().read_at(fd, position, bytes);
  }
  ssize_t write(int fd, std::span<const std::byte> bytes) override {
    return real().write(fd, bytes);
  }
  int fsync(int) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !held_; });
    errno = EIO;
    return fails_ ? -1 : 0;
  }
  int close(int fd) override { return real().close(fd); }
  int mkdir(const std::string& path, mode_t mode) override { return real().mkdir(path, mode); }
  int rename(const std::string& from, const std::string& to) override {
    return real().rename(from, to);
  }
  int exchange(const std::string& a, const std::string& b) override {
    return real().exchange(a, b);
  }
  int unlink(const std::string& path) override { return real().unlink(path); }
  int rmdir(const std::string& path) override { return real().rmdir(path); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
  std::atomic<bool> fails_{false};
};

}  // namespace paceline::testing
