#include "paceline/launcher/job/job_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

namespace paceline::launcher {

JobMemory::JobMemory() : file_(memfd_create("paceline-memory-checkpoint", MFD_CLOEXEC)) {}

void JobMemory::add_variables(Environment& environment) const {
  if (!file_) return;
  environment.try_emplace("PACELINE_MEMORY_CHECKPOINT",
                          fmt::format("/proc/{}/fd/{}", getpid(), file_.get()));
}

}  // namespace paceline::launcher
