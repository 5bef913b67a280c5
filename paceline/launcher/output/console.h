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

#include "paceline/launcher/messages/remote_frames.h"
#include "paceline/launcher/process/event_loop.h"

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

// The launcher's two consoles, stdout and stderr, written without ever waiting for their readers:
// what does not fit waits until the loop sees room. In a job that a launcher on another host
// started, the launcher's own words go to that one, as frames (launcher/messages/remote_frames.h).

// Writes frames to where a launcher on another host reads. Its reader only stops while megabytes
// are on their way to there, as those of a timeline.
void write_notice(int notices_fd, std::string_view frames);

class Consoles {
 public:
  // `loop` must outlive it. `notices_fd`, when given, takes the launcher's own words as frames; it
  // is not owned.
  explicit Consoles(EventLoop& loop, int notices_fd = -1) : loop_(loop), notices_fd_(notices_fd) {}

  Console& out() { return out_.console; }
  Console& err() { return err_.console; }
  // The launcher's own words go to stderr; of this node, or of the whole job.
  void say(const std::string& text) { say(FrameKind::kSay, text); }
  void announce(const std::string& text) { say(FrameKind::kAnnounce, text); }
  // Where output of the ranks could not be written, and why: a full disk, not a reader that left.
  // Empty while nothing is lost.
  std::string lost() const;
  bool empty() const { return out_.console.empty() && err_.console.empty(); }
  // Once a turn: asks the loop for room where something waits.
  void watch_for_room();

 private:
  struct Watched {
    Console console;
    bool watched = false;
  };

  void say(FrameKind kind, const std::string& text);

  EventLoop& loop_;
  int notices_fd_;
  Watched out_{Console(1)}, err_{Console(2)};
};

}  // namespace paceline::launcher
