#pragma once

// The plan of `paceline run --hosts`, and the entry through which `paceline ps` and `paceline stop`
// find the job on the launcher's machine.

#include <chrono>
#include <cstdint>
#include <ctime>
#include <string>
#include <vector>

#include <sys/types.h>
#include <unistd.h>

#include "paceline/launcher/hosts/host_link.h"
#include "paceline/launcher/messages/job_socket.h"
#include "paceline/launcher/messages/remote_frames.h"
#include "paceline/launcher/process/event_loop.h"

namespace paceline::launcher {

struct HostsJob {
  std::string run_id;
  std::vector<std::string> command;
  std::vector<std::string> hosts;  // as the user named them
  int world_size = 1;
};

// The job's socket (launcher/messages/job_socket.h) on the machine of its launcher, even if no rank
// runs there: `paceline ps` shows the job there, and `paceline stop` ends it on all hosts.
//
// Thread safety: none; everything happens in handlers of the loop.
class HostsEntry {
 public:
  // `loop` must outlive this object.
  HostsEntry(EventLoop& loop, HostsJob job, const JobSocket::Say& say);

 private:
  void answer(const JobRequest& request) const;
  std::string description() const;

  const HostsJob job_;
  const pid_t supervisor_ = getppid();
  const std::int64_t started_ = std::time(nullptr);  // seconds since 1970
  JobSocket socket_;
};

// The plan of `paceline run --hosts`.
struct HostsPlan {
  struct Part {
    HostRoute route;
    RemoteJob job;
  };
  std::vector<Part> parts;    // in the order of hosts
  HostsJob job;               // what HostsEntry shows
  std::string version;        // the version of Paceline that every host must have
  std::string program_hint;   // tells the user how to name paceline's path on the hosts
  std::string timeline;       // path of the trace of all hosts' ranks; empty: none
  bool prefix_lines = false;  // output of ranks arrives as lines that name host and rank
  int min_hosts = 1;          // the job continues as long as this many hosts are left
  int host_tries = 0;         // how many times a lost host is started again
  std::chrono::nanoseconds start_timeout = std::chrono::seconds(30);
  std::chrono::nanoseconds shutdown_timeout = std::chrono::seconds(10);
};

}  // namespace paceline::launcher
