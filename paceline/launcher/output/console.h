#pragma once

// Writes to a descriptor that the launcher shares with others (its stdout or stderr), without ever
// waiting for whoever reads it: a reader that stops must not keep the launcher from seeing signals
// and deaths. What does not fit is kept; above a limit the caller stops reading from the ranks, so
// they wait as if they wrote to the descriptor themselves.
//
// O_NONBLOCK would change the descriptor for every process that shares it, so each write is
// preceded by poll() and is at most one PIPE_BUF, which a pipe that is ready takes whole.

#include <cstddef>
#include <string>
#include <string_view>

namespace paceline::launcher {

class Console {
 public:
  explicit Console(int fd) : fd_(fd) {}
  Console(Console&&) = default;
  Console& operator=(Console&&) = default;

  void write(std::string_view bytes);
  // Writes what the reader takes now.
  void flush();

  int fd() const { return fd_; }
  bool empty() const { return num_pending() == 0; }
  std::size_t num_pending() const { return pending_.size() - sent_; }
  // More than the limit is waiting: read no more until it has been written.
  bool saturated() const { return num_pending() > kLimit; }
  // Why what was written since then is lost, an errno: 0 while nothing is. EPIPE: the reader is
  // gone, which is its own affair.
  int error() const { return error_; }

 private:
  static constexpr std::size_t kLimit = 256 << 10;

  int fd_;
  int error_ = 0;
  std::string pending_;
  std::size_t sent_ = 0;
};

}  // namespace paceline::launcher
