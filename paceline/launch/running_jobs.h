#pragma once

// The other Paceline jobs of this machine, so that two of them on the same cores do not go
// unnoticed. Every launcher holds a mark: a Unix socket whose name, in Linux's abstract namespace,
// says its pid and how many threads its ranks compute with. The kernel removes it with the process,
// however that ends, so nothing is ever left behind. Anybody on the machine can make such a name;
// it is believed for a warning; who asks a job something looks whose socket it is (job_socket.h).
//
// Jobs in other network namespaces (most containers) are not seen.

#include <string>
#include <vector>

#include <sys/types.h>

#include "paceline/core/fd.h"

namespace paceline::launch {

struct RunningJob {
  pid_t launcher = -1;    // the parent of its ranks
  int num_ranks = 0;      // on this machine
  int num_threads = 0;    // of all its ranks together
  std::vector<int> cpus;  // what its ranks may run on, ascending
  bool operator==(const RunningJob&) const = default;
};

// The mark's name without the zero that begins it: "paceline-job/711/2x4".
std::string mark_name(pid_t launcher, int num_ranks, int num_threads);

// Marks the calling process as the launcher of such ranks (none: they run on other hosts), until
// the descriptor is closed: a listening, non-blocking stream socket (job_socket.h). Not valid when
// the name is taken or sockets are forbidden.
Fd mark_running_job(int num_ranks, int num_threads);

// The names of all marks on this machine, this process's own included, in the order of pids.
std::vector<std::string> find_marks();

// Jobs that have a rank by now, the calling process's own excepted.
std::vector<RunningJob> find_running_jobs();

}  // namespace paceline::launch
