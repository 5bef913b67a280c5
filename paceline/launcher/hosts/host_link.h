#pragma once

// The connection to one host of a job, and the input of rank 0 that is sent through it.
//
// Thread safety: none. Everything happens in handlers of the loop.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/launcher/messages/clock_comparison.h"
#include "paceline/launcher/messages/keep_alive.h"
#include "paceline/launcher/messages/remote_frames.h"
#include "paceline/launcher/output/console.h"
#include "paceline/launcher/process/event_loop.h"
#include "paceline/launcher/process/process.h"

namespace paceline::launcher {

// How to reach a host.
struct HostRoute {
  std::string name;                  // the host as the user named it
  std::string program;               // the path of the connecting program: /usr/bin/ssh
  std::vector<std::string> command;  // argv of the connecting program
  std::vector<std::string> unset;    // variables that the connecting program does not inherit
};

// The connecting process (ssh or srun; for this machine, the program of remote_end.h), the frames
// that are sent through its standard streams, and the text that it prints on stderr.
//
// The link compares the clock of the host with the clock of this machine: a few times after the
// greeting, and again on request.

class HostLink {
 public:
  struct Handlers {
    std::function<void(const Frame&)> on_frame;
    // Called when the process has ended and all its output has been handled.
    std::function<void()> on_end;
  };

  // Starts the process. `loop` must outlive the link. Error(kSystem).
  HostLink(EventLoop& loop, HostRoute route, Handlers handlers);
  HostLink(const HostLink&) = delete;
  HostLink& operator=(const HostLink&) = delete;
  ~HostLink();

  const HostRoute& route() const { return route_; }
  // Whether the hello of the remote end has arrived.
  bool greeted() const { return greeted_; }
  bool ended() const { return status_.has_value(); }
  // The exit status as a shell reports it: the exit code, or 128 + signal. Requires: ended().
  int status() const { return *status_; }
  // The time since output last arrived. 0 while output is held, because nothing is read then;
  // afterwards the count starts again from 0.
  std::chrono::nanoseconds silence() const {
    return held_ ? std::chrono::nanoseconds(0) : silence_.lasted();
  }
  const ClockComparison& clock() const { return clock_; }
  // The last lines that the connecting process, or a shell on the host, printed; indented.
  std::string last_lines() const;

  // Sends a frame; drops it if the process has ended.
  void send(FrameKind kind, std::string_view payload = {});
  // Starts one more exchange of clock readings.
  void compare_clocks();
  // Stops reading the host's output (true), for example while the console is full, or resumes it.
  void hold(bool held);
  // Kills the connecting process. The remote end then ends as well.
  void cut();

 private:
  enum class Taken { kSome, kNothing, kEnd };

  static Taken nothing_taken(ssize_t length);
  void on_out();
  Taken read_out();
  void take(std::string_view bytes);
  void on_hello();
  void on_clock(const std::string& payload);
  void on_err();
  Taken read_err();
  void on_process_end();
  void watch_for_room();

  EventLoop& loop_;
  HostRoute route_;
  Handlers handlers_;
  Process process_;
  Fd in_, out_, err_;
  Console to_host_;
  FrameReader reader_{kGreeting};
  std::string err_text_;
  Deadline::Clock::time_point heard_ = Deadline::Clock::now();
  Silence silence_;
  ClockComparison clock_;
  int first_exchanges_left_ = 0;
  bool greeted_ = false, watches_in_ = false, held_ = false;
  std::optional<int> status_;
};

// The input of rank 0 in a job of --hosts: the launcher's stdin, which is passed on to the first
// host and is read only as fast as rank 0 reads it.
class RemoteInput {
 public:
  using Send = std::function<void(FrameKind kind, std::string_view payload)>;

  // `stdin_fd` may be empty. Sends nothing before begin(). `loop` must outlive this object.
  RemoteInput(EventLoop& loop, Fd stdin_fd, Send send);
  RemoteInput(const RemoteInput&) = delete;
  RemoteInput& operator=(const RemoteInput&) = delete;
  ~RemoteInput();

  void begin() { watch(); }
  // Call when rank 0 has taken this many more bytes.
  void taken(std::uint32_t bytes);
  // Call this once in each iteration of the loop: the loop cannot wait for a plain file, which is
  // always ready.
  void tend();

 private:
  void watch();
  void pump();

  EventLoop& loop_;
  Fd stdin_;
  const Send send_;
  std::size_t in_flight_ = 0;
  bool watched_ = false, is_file_ = false;
};

}  // namespace paceline::launcher
