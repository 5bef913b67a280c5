#pragma once

// Writes to stdout and stderr without ever waiting for their readers: even if a reader stops, the
// launcher must notice signals and ends of processes.

#include <cstddef>
#include <string>
#include <string_view>

#include "paceline/engine/core/system/fd.h"
#include "paceline/launcher/messages/remote_frames.h"
#include "paceline/launcher/process/event_loop.h"
#include "paceline/launcher/process/process.h"

namespace paceline::launcher {

// One descriptor that the launcher shares with other processes. This class keeps output that the
// reader does not accept yet. If it keeps too much (saturated()), the caller stops reading from the
// ranks, so they wait as if they wrote to the descriptor themselves.
//
// O_NONBLOCK would change the descriptor for every process that shares it. So this class calls
// poll() before each write, and writes at most PIPE_BUF bytes: a ready pipe accepts all of them. A
// terminal is ready as soon as it has any room, so it is opened a second time, with O_NONBLOCK.
class Console {
 public:
  explicit Console(int fd);
  Console(Console&&) = default;
  Console& operator=(Console&&) = default;

  void write(std::string_view bytes);
  // Writes as much as the reader accepts now.
  void flush();

  int fd() const { return terminal_ ? terminal_.get() : fd_; }
  bool empty() const { return num_pending() == 0; }
  std::size_t num_pending() const { return pending_.size() - sent_; }
  // Whether more bytes than the limit are waiting. If so, do not read more from the ranks.
  bool saturated() const { return num_pending() > kLimit; }
  // The errno of the write that failed, after which all output is lost; 0: no write has failed.
  // EPIPE means that the reader has closed its end, which is not an error of the job.
  int error() const { return error_; }

 private:
  static constexpr std::size_t kLimit = 256 << 10;

  int fd_;
  Fd terminal_;  // only if fd_ is a terminal that this user may open
  int error_ = 0;
  std::string pending_;
  std::size_t sent_ = 0;
};

// The launcher's two consoles. Output that the readers do not accept is kept until the loop reports
// that they do. If a launcher on another host started this one, this launcher sends its own
// messages, and facts that only the other launcher needs, to that launcher as frames
// (launcher/messages/remote_frames.h).
class Consoles {
 public:
  // Does not own the descriptors. `loop` must outlive the object. Frames are written to
  // `notices_fd`; -1: no other launcher started this one.
  explicit Consoles(EventLoop& loop, int notices_fd = -1, int out_fd = 1, int err_fd = 2)
      : loop_(loop), notices_fd_(notices_fd), out_{Console(out_fd)}, err_{Console(err_fd)} {}
  Consoles(const Consoles&) = delete;
  Consoles& operator=(const Consoles&) = delete;
  ~Consoles();
  // Until this object ends, the log lines of all threads of this process go to err(), so no thread
  // waits for the reader of stderr. Error(kSystem). Requires: no other threads, now and when this
  // object ends.
  void take_log();

  Console& out() { return out_.console; }
  Console& err() { return err_.console; }
  // Print the launcher's own messages, about this node or about the whole job, to stderr or, as
  // frames, to the other launcher.
  void say(const std::string& text) { say(FrameKind::kSay, text); }
  void announce(const std::string& text) { say(FrameKind::kAnnounce, text); }
  // Tells the launcher on the other host that the agent at `meeting` leads the job: this agent, or
  // the agent to which this one has given way.
  void tell_leads(const Endpoint& meeting);
  // Tells the other launcher that the job is over on all hosts, with this exit code.
  void tell_over(int exit_code);
  // Sends the timeline of one rank, packed, to the other launcher.
  void tell_timeline(const std::string& packed);
  // Names the console that could not be written, and why, for example because of a full disk. Empty
  // while no output is lost; a reader that has closed its end does not count.
  std::string lost() const;
  bool empty() const { return out_.console.empty() && err_.console.empty(); }
  // Call this in each iteration of the loop: watches exactly the consoles with output waiting.
  void watch_for_room();

 private:
  struct Watched {
    Console console;
    bool watched = false;
  };

  void say(FrameKind kind, const std::string& text);
  void tell(FrameKind kind, std::string_view payload);
  void pass_log_on();

  EventLoop& loop_;
  int notices_fd_;
  Pipe log_;  // from the log to err(); both ends are non-blocking
  Watched out_, err_;
};

}  // namespace paceline::launcher
