#pragma once

// Whether the kernel killed a rank for lack of memory: the counters of its cgroup and of the
// machine, and the kernel's own log.

#include <cstdint>
#include <optional>
#include <string>

#include <sys/types.h>

#include "paceline/engine/core/system/fd.h"

namespace paceline::launcher {

// A kill for lack of memory, as the kernel logs it.
struct KernelKill {
  pid_t pid = -1;                // in the first pid namespace: a container's numbers differ
  std::uint64_t used_bytes = 0;  // resident memory at that moment
  bool in_cgroup = false;        // a cgroup had reached its limit, not the machine
};

// Reads one record of /dev/kmsg; nothing when it is about no such kill.
std::optional<KernelKill> parse_kernel_kill(const std::string& record);

// The kernel's log, /dev/kmsg. Root may always read it, others where kernel.dmesg_restrict is 0.
class KernelLog {
 public:
  // Reads from now on; where the log cannot be read, find() finds nothing.
  explicit KernelLog(const char* path = "/dev/kmsg");

  // Whether the kernel killed `pid` since the last call.
  std::optional<KernelKill> find(pid_t pid);

 private:
  Fd file_;
};

// How often the kernel has killed for lack of memory, and how much memory there is. Read when ranks
// start and when one is killed, they tell an out-of-memory kill from any other SIGKILL.
struct MemoryCounters {
  // Processes killed for lack of memory: in this process's cgroup, and on the whole machine.
  // Nothing: not readable.
  std::optional<std::uint64_t> cgroup_kills, machine_kills;
  // The smallest limit on the way up from this process's cgroup, in bytes; nothing: no limit.
  std::optional<std::uint64_t> limit;
  std::string limit_source;         // the file of that limit
  std::uint64_t machine_bytes = 0;  // of the whole machine; 0: not known
  bool operator==(const MemoryCounters&) const = default;
};

// Knows cgroup v2 (memory.events, memory.max) and v1 (memory.oom_control, memory.limit_in_bytes).
// `cgroups` is where the cgroup file systems are mounted, `proc` the proc file system.
MemoryCounters read_memory_counters(const std::string& cgroups = "/sys/fs/cgroup",
                                    const std::string& proc = "/proc");

// "512 MiB", "1.5 GiB".
std::string bytes_text(std::uint64_t bytes);

}  // namespace paceline::launcher
