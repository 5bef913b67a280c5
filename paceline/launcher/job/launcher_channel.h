#pragma once

// What an agent tells the launcher of --hosts, on whichever machine that is, besides its words
// (launcher/output/consoles.h): frames (launcher/messages/remote_frames.h), which this host's
// remote end carries.
//
// Thread safety: none.

#include <string>

#include "paceline/engine/core/socket.h"

namespace paceline::launcher {

class LauncherChannel {
 public:
  // As LaunchOptions::notices_fd.
  explicit LauncherChannel(int notices_fd) : notices_fd_(notices_fd) {}

  // This agent leads the job, and the others meet it there.
  void say_leads(const Endpoint& meeting) const;
  // The job is over on all hosts, with this exit code.
  void say_over(int exit_code) const;
  // A rank's, packed. Requires such a launcher.
  void send_timeline(const std::string& packed) const;

 private:
  const int notices_fd_;
};

}  // namespace paceline::launcher
