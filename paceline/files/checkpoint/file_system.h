#pragma once

// The system calls by which a checkpoint reaches the disk, as an interface, so that a test can make
// the Nth of them fail. Each behaves as the call of the same name: -1 and errno on failure, and a
// write may be short. None follows a symbolic link, neither at the end of a path nor on the way:
// ELOOP. Whoever may write into a folder of checkpoints could otherwise let this process write or
// remove anything else. So callers resolve a path that a user gave first (without_links()).
//
// Thread safety: the real one keeps no state; every function may be called from any thread.

#include <cerrno>
#include <cstddef>
#include <span>
#include <string>

#include <sys/types.h>

#include "paceline/engine/core/error.h"

namespace paceline {

// The disk is full, or the user's share of it.
class DiskFull : public Error {
 public:
  using Error::Error;
};

// Throws what a call of these that failed comes to: Error(kSystem), as system_error() makes it.
[[noreturn]] void refuse(const std::string& what, int error_number = errno);

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  virtual int open(const std::string& path, int flags, mode_t mode) = 0;
  virtual ssize_t read_at(int fd, off_t position, std::span<std::byte> bytes) = 0;  // pread()
  virtual ssize_t write(int fd, std::span<const std::byte> bytes) = 0;
  virtual int fsync(int fd) = 0;
  virtual int close(int fd) = 0;
  virtual int mkdir(const std::string& path, mode_t mode) = 0;
  virtual int rename(const std::string& from, const std::string& to) = 0;
  // Swaps two existing paths in one step; EINVAL or ENOSYS where the file system cannot.
  virtual int exchange(const std::string& a, const std::string& b) = 0;
  virtual int unlink(const std::string& path) = 0;
  virtual int rmdir(const std::string& path) = 0;
  // Whether what is written to this descriptor goes past the kernel's cache from now on (O_DIRECT).
  // False where the file system has no such way.
  virtual bool pass_cache(int fd, bool passes);

  // The machine's own. Never destroyed.
  static FileSystem& real();
};

}  // namespace paceline
