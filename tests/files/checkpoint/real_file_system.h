#pragma once

#include <string>

#include "paceline/files/checkpoint/file_system.h"

namespace paceline::testing {

// The machine's file system; derived classes replace some of its calls.
class RealFileSystem : public FileSystem {
 public:
  int open(const std::string& path, int flags, mode_t mode) override {
    return real().open(path, flags, mode);
  }
  ssize_t read_at(int fd, off_t position, std::span<std::byte> bytes) override {
    return real().read_at(fd, position, bytes);
  }
  ssize_t write(int fd, std::span<const std::byte> bytes) override {
    return real().write(fd, bytes);
  }
  int fsync(int fd) override { return real().fsync(fd); }
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
};

}  // namespace paceline::testing
