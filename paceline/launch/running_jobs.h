#pragma once

// The other Paceline jobs of this machine, so that two of them on the same cores do not go
// unnoticed. Every launcher holds a mark: a Unix socket whose name, in Linux's abstract namespace,
// says its pid and how many threads its ranks compute with. The kernel removes it with the process,
// however that ends, so nothing is ever left behind. Anybody on the machine can make such a name;
// it is believed for a warning, and for nothing else.
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

// Marks the calling process as the launcher of such ranks, until the descriptor is closed. Not
// valid when the name is taken or sockets are forbidden; that costs others a warning, no more.
Fd mark_running_job(int num_ranks, int num_threads);

// Jobs that have a rank by now, the calling process's own excepted.
std::vector<RunningJob> find_running_jobs();

}  // namespace paceline::launch
