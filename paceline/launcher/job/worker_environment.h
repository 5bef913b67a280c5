#pragma once

// The environment of one rank: what the launcher inherited, plus torchrun's variables (the same
// names, so that Python scripts run unchanged), thread counts and the job's store; without what
// MPI's launchers and torchrun say of the launcher itself. Pure.

#include <cstdint>
#include <string>

#include "paceline/launcher/job/launch_options.h"
#include "paceline/launcher/messages/node_place.h"
#include "paceline/launcher/placement/placement.h"
#include "paceline/launcher/process/environment.h"

namespace paceline::launcher {

struct JobAddresses {
  std::string store;  // host:port of the job's store
  std::string master_addr;
  std::uint16_t master_port = 0;
  int secret_fd = -1;  // inherited; holds the job's secret as text
};

// The user's OMP_NUM_THREADS, OPENBLAS_NUM_THREADS, OMP_WAIT_POLICY and GOMP_SPINCOUNT stand when
// they are set in `inherited`.
Environment worker_environment(const Environment& inherited, const LaunchOptions& options,
                               const NodePlace& place, int local_rank, const Placement& placement,
                               const JobAddresses& addresses);

// Says what the rank's stdout, a terminal of the launcher's making (launcher/output/rank_stdout.h),
// can do: a rank whose output alone is on the launcher's terminal may draw there. Any other is told
// that its terminal is a dumb one, so that logs and files get no colours; unless the user forces
// them.
void set_terminal(Environment& env, const LaunchOptions& options, const NodePlace& place,
                  int local_rank);

}  // namespace paceline::launcher
