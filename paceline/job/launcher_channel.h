#pragma once

// An agent's way to the launcher of --hosts, on whichever machine that is: reports go there and
// orders come back as frames (messages/remote_frames.h), through this host's remote end. Only for
// what no coordinator sees to: agents that do not meet.
//
// Thread safety: none.

#include <functional>
#include <string>

#include "paceline/core/fd.h"
#include "paceline/messages/agent_messages.h"
#include "paceline/messages/remote_frames.h"
#include "paceline/process/event_loop.h"

namespace paceline::launch {

class LauncherChannel {
 public:
  using Handler = std::function<void(const Order&)>;

  // `notices_fd` as HostPart::notices_fd; -1: there is no such launcher, and nothing happens.
  LauncherChannel(EventLoop& loop, int notices_fd, Handler handler);
  LauncherChannel(const LauncherChannel&) = delete;
  LauncherChannel& operator=(const LauncherChannel&) = delete;
  ~LauncherChannel();

  void report(const Report& report);
  // Both require such a launcher. This agent leads the job, and the others meet it there.
  void say_leads(const Endpoint& meeting);
  // A rank's, packed.
  void send_timeline(const std::string& packed);

 private:
  void read();

  EventLoop& loop_;
  const int notices_fd_;
  Fd orders_;  // the same socket, watched apart from what is written to it
  Handler handler_;
  FrameReader reader_;
};

}  // namespace paceline::launch
