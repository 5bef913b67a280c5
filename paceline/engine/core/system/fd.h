#pragma once

// An owned file descriptor, and the passing of descriptors over Unix sockets.

#include <cstddef>
#include <span>
#include <utility>

#include <sys/types.h>
#include <unistd.h>

namespace paceline {

// A file descriptor, closed when it goes out of scope.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~Fd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

// Descriptors that travel with bytes over a Unix socket (SCM_RIGHTS). The receiver gets copies of
// its own, which are close-on-exec. As in io.h, these functions do not throw, and they repeat a
// call that a signal interrupts.
//
// Thread safety: any thread may call; a socket may have one reader and one writer at a time.

inline constexpr std::size_t kMaxDescriptors = 8;  // in one call

// Returns the result of sendmsg(), and never waits. The descriptors travel with the first byte.
// Requires: `bytes` is not empty.
ssize_t send_with_descriptors(int socket, std::span<const std::byte> bytes,
                              std::span<const int> descriptors);

enum class Wait : bool { kNo, kYes };

struct Received {
  ssize_t bytes = 0;  // the result of recvmsg(): 0 at the end of the input, or -1 and errno
  // The number of descriptors that were stored in `into`; any others were closed.
  std::size_t descriptors = 0;
  bool is_cut = false;  // more bytes or descriptors arrived than there was room for
};
// Calls recvmsg() once. With kYes the call waits as a read of the socket would.
Received receive_with_descriptors(int socket, std::span<std::byte> bytes, std::span<Fd> into,
                                  Wait wait = Wait::kNo);

}  // namespace paceline
