#pragma once

// What lists a job of --hosts on the machine where its launcher runs, which may have no rank of it:
// `paceline ps` shows it, `paceline stop` ends the whole job there
// (launcher/messages/job_socket.h).
//
// Thread safety: none; everything happens in handlers of the loop.

#include <cstdint>
#include <ctime>
#include <string>
#include <vector>

#include <sys/types.h>
#include <unistd.h>

#include "paceline/launcher/messages/job_socket.h"
#include "paceline/launcher/process/event_loop.h"

namespace paceline::launcher {

struct HostsJob {
  std::string run_id;
  std::vector<std::string> command;
  std::vector<std::string> hosts;  // as the user calls them
  int world_size = 1;
};

class HostsEntry {
 public:
  // `loop` must outlive it.
  HostsEntry(EventLoop& loop, HostsJob job, const JobSocket::Say& say);

 private:
  void answer(const JobRequest& request) const;
  std::string description() const;

  const HostsJob job_;
  const pid_t supervisor_ = getppid();
  const std::int64_t started_ = std::time(nullptr);  // seconds since 1970
  JobSocket socket_;
};

}  // namespace paceline::launcher
