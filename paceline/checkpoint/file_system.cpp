#include "paceline/checkpoint/file_system.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

namespace paceline {
namespace {

class RealFileSystem final : public FileSystem {
 public:
  int open(const std::string& path, int flags, mode_t mode) override {
    return ::open(path.c_str(), flags, mode);
  }
  ssize_t read_at(int fd, off_t position, std::span<std::byte> bytes) override {
    return ::pread(fd, bytes.data(), bytes.size(), position);
  }
  ssize_t write(int fd, std::span<const std::byte> bytes) override {
    return ::write(fd, bytes.data(), bytes.size());
  }
  int fsync(int fd) override { return ::fsync(fd); }
  int close(int fd) override { return ::close(fd); }
  int mkdir(const std::string& path, mode_t mode) override { return ::mkdir(path.c_str(), mode); }
  int rename(const std::string& from, const std::string& to) override {
    return ::rename(from.c_str(), to.c_str());
  }
  int exchange(const std::string& a, const std::string& b) override {
    return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE);
  }
  int unlink(const std::string& path) override { return ::unlink(path.c_str()); }
  int rmdir(const std::string& path) override { return ::rmdir(path.c_str()); }
};

}  // namespace

bool FileSystem::pass_cache(int fd, bool passes) {
  const int flags = ::fcntl(fd, F_GETFL);
  return flags >= 0 && ::fcntl(fd, F_SETFL, passes ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

void refuse(const std::string& what, int error_number) {
  const Error error = system_error(what, error_number);
  if (error_number == ENOSPC || error_number == EDQUOT) throw DiskFull(error.code(), error.what());
  throw error;
}

FileSystem& FileSystem::real() {
  static auto* const instance = new RealFileSystem;  // leaked: destructors at exit may still use it
  return *instance;
}

}  // namespace paceline
