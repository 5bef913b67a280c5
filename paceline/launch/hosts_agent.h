#pragma once

// Starts a job on several hosts and stays until it has ended everywhere: the agent (supervisor.h)
// of `paceline run --hosts`. One thread, one event loop over the connections.
//
// No host starts a rank before every host has answered. Host 0 gets its part first, holds the job's
// ports and says which; then the others get theirs. The first failure that arrives, of a rank or of
// a connection, is the one reported; the others are stopped.
//
// A job that goes on after failures is led by its agents (coordinator.h), which meet at host 0, and
// they say when it is over. What is done here is to begin once enough hosts have answered, to end
// the job when too few are left, and to say what all hosts say only once.

#include <chrono>
#include <string>
#include <vector>

#include "paceline/launch/host_link.h"
#include "paceline/launch/hosts_entry.h"
#include "paceline/launch/remote_job.h"
#include "paceline/launch/supervisor.h"

namespace paceline::launch {

struct HostsPlan {
  struct Part {
    HostRoute route;
    RemoteJob job;  // its ports: what the user chose, or 0
  };
  std::vector<Part> parts;    // in the order of hosts
  HostsJob job;               // as it is listed here
  std::string version;        // that every host must have
  std::string program_hint;   // how to say where paceline is on the hosts
  bool prefix_lines = false;  // what ranks write comes as lines that name host and rank
  // The hosts' agents see to failures themselves, and go on while so many hosts are left.
  bool goes_on = false;
  int min_hosts = 1;
  std::chrono::nanoseconds start_timeout = std::chrono::seconds(30);
  std::chrono::nanoseconds shutdown_timeout = std::chrono::seconds(10);
};

// The exit code of the job: 0, that of the rank that failed first, kStoppedAsAgreed when all ranks
// of all hosts stopped so, 3 when a host could not be reached or was lost, or 128 + N when signal N
// ended the launcher.
int run_on_hosts(const HostsPlan& plan, AgentChannel channel);

}  // namespace paceline::launch
