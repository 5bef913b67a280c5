#pragma once

// Writing to stdout and stderr without ever waiting for their readers: a reader that stops must not
// keep the launcher from seeing signals and deaths.

#include <cstddef>
#include <string>
#include <string_view>

#include "paceline/launcher/messages/remote_frames.h"
#include "paceline/launcher/process/event_loop.h"

namespace paceline::launcher {

// One descriptor that the launcher shares with other processes. It keeps output that the reader
// does not take now; above a limit the caller stops reading from the ranks, so they wait as if they
// wrote to the descriptor themselves.
//
// O_NONBLOCK would change the descriptor for every process that shares it. So poll() precedes each
// write, which is at most one PIPE_BUF: a pipe that is ready takes that whole.
class Console {
 public:
  explicit Console(int fd) : fd_(fd) {}
  Console(Console&&) = default;
  Console& operator=(Console&&) = default;

  void write(std::string_view bytes);
  // Writes as much as the reader takes now.
  void flush();

  int fd() const { return fd_; }
  bool empty() const { return num_pending() == 0; }
  std::size_t num_pending() const { return pending_.size() - sent_; }
  // Whether more than the limit is waiting: read no more until it has been written.
  bool saturated() const { return num_pending() > kLimit; }
  // The errno of the write that failed; all later output is lost. 0: none has failed. EPIPE means
  // that the reader has gone, which is its own affair.
  int error() const { return error_; }

 private:
  static constexpr std::size_t kLimit = 256 << 10;

  int fd_;
  int error_ = 0;
  std::string pending_;
  std::size_t sent_ = 0;
};

// The launcher's two consoles: output that does not fit waits until the loop sees room. In a job
// that a launcher on another host started, this one's own words go to that launcher, as frames
// (launcher/messages/remote_frames.h), and so do facts that only that launcher needs.
class Consoles {
 public:
  // Owns no descriptor. `loop` must outlive it. `notices_fd` takes the frames; -1: there is no
  // other launcher.
  explicit Consoles(EventLoop& loop, int notices_fd = -1, int out_fd = 1, int err_fd = 2)
      : loop_(loop), notices_fd_(notices_fd), out_{Console(out_fd)}, err_{Console(err_fd)} {}

  Console& out() { return out_.console; }
  Console& err() { return err_.console; }
  // The launcher's own words, about this node or about the whole job, go to stderr.
  void say(const std::string& text) { say(FrameKind::kSay, text); }
  void announce(const std::string& text) { say(FrameKind::kAnnounce, text); }
  // For the launcher on another host: this agent leads the job, and the others meet it there.
  void tell_leads(const Endpoint& meeting);
  // The job is over on all hosts, with this exit code.
  void tell_over(int exit_code);
  // A rank's timeline, packed.
  void tell_timeline(const std::string& packed);
  // Which console could not be written, and why: a full disk, not a reader that left. Empty while
  // nothing is lost.
  std::string lost() const;
  bool empty() const { return out_.console.empty() && err_.console.empty(); }
  // To be called once a turn: watches the consoles for which output waits.
  void watch_for_room();

 private:
  struct Watched {
    Console console;
    bool watched = false;
  };

  void say(FrameKind kind, const std::string& text);
  void tell(FrameKind kind, std::string_view payload);

  EventLoop& loop_;
  int notices_fd_;
  Watched out_, err_;
};

}  // namespace paceline::launcher
