#pragma once

// Memory in which a job's ranks may keep their state beyond their own deaths (MemoryCheckpoint): a
// file without a name, held by the agent, so that it lives exactly as long as the job on this host.
// It takes no memory until it is written to.

#include "paceline/engine/core/fd.h"
#include "paceline/launcher/process/environment.h"

namespace paceline::launcher {

class JobMemory {
 public:
  JobMemory();

  // What tells a rank where it is, unless the user has named another place. Nothing when the
  // system gave none.
  void add_variables(Environment& environment) const;

 private:
  Fd file_;
};

}  // namespace paceline::launcher
