#pragma once

// What `paceline run --hosts` is about to do, decided. A value.

#include <chrono>
#include <string>
#include <vector>

#include "paceline/launcher/hosts/host_link.h"
#include "paceline/launcher/hosts/hosts_entry.h"
#include "paceline/launcher/messages/remote_job.h"

namespace paceline::launcher {

struct HostsPlan {
  struct Part {
    HostRoute route;
    RemoteJob job;
  };
  std::vector<Part> parts;    // in the order of hosts
  HostsJob job;               // as it is listed here
  std::string version;        // that every host must have
  std::string program_hint;   // how to say where paceline is on the hosts
  std::string timeline;       // the trace of all hosts' ranks to write here; empty: none
  bool prefix_lines = false;  // what ranks write comes as lines that name host and rank
  int min_hosts = 1;          // the job goes on while so many hosts are left
  int host_tries = 0;         // so often a lost host is started again
  std::chrono::nanoseconds start_timeout = std::chrono::seconds(30);
  std::chrono::nanoseconds shutdown_timeout = std::chrono::seconds(10);
};

}  // namespace paceline::launcher
