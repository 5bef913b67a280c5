#pragma once

// What the kernel says about processes that it killed for lack of memory, from /dev/kmsg. Root may
// always read it, others where kernel.dmesg_restrict is 0.

#include <cstdint>
#include <optional>
#include <string>

#include <sys/types.h>

#include "paceline/engine/core/fd.h"

namespace paceline::launcher {

struct KernelKill {
  pid_t pid = -1;                // in the first pid namespace: a container's numbers differ
  std::uint64_t used_bytes = 0;  // resident when it was killed
  bool in_cgroup = false;  // because of a cgroup's limit, not for lack of the machine's memory
};

// One record of /dev/kmsg; nothing when it tells of no such kill.
std::optional<KernelKill> parse_kernel_kill(const std::string& record);

class KernelLog {
 public:
  // From now on; where the log cannot be read, find() finds nothing.
  explicit KernelLog(const char* path = "/dev/kmsg");

  // Whether the kernel killed `pid` since the last call.
  std::optional<KernelKill> find(pid_t pid);

 private:
  Fd file_;
};

}  // namespace paceline::launcher
