#pragma once

// Finds out whether the kernel killed a rank because memory ran out, from the counters of its
// cgroup and of the machine, and from the kernel's log.

#include <cstdint>
#include <optional>
#include <string>

#include <sys/types.h>

#include "paceline/engine/core/system/fd.h"

namespace paceline::launcher {

// An out-of-memory kill, as the kernel logs it.
struct KernelKill {
  pid_t pid = -1;                // in the initial pid namespace, not in a container's
  std::uint64_t used_bytes = 0;  // resident memory at the time of the kill
  bool in_cgroup = false;        // a cgroup's limit was reached; the machine had memory left
};

// Reads one record of /dev/kmsg; nullopt if it is not about an out-of-memory kill.
std::optional<KernelKill> parse_kernel_kill(const std::string& record);

// The kernel's log, /dev/kmsg. Root may always read it, other users if kernel.dmesg_restrict is 0.
class KernelLog {
 public:
  // Ignores the records that exist already. If the log cannot be read, find() returns nullopt.
  explicit KernelLog(const char* path = "/dev/kmsg");

  // The kill of `pid`, if the kernel has logged one since the last call.
  std::optional<KernelKill> find(pid_t pid);

 private:
  Fd file_;
};

// The number of out-of-memory kills so far, and the amount of memory. A comparison of the counters
// before and after a SIGKILL shows whether it was an out-of-memory kill.
struct MemoryCounters {
  // The out-of-memory kills in this process's cgroup, and on the whole machine; nullopt if the
  // counter cannot be read.
  std::optional<std::uint64_t> cgroup_kills, machine_kills;
  // The smallest limit of this process's cgroup and its parents, in bytes; nullopt: no limit.
  std::optional<std::uint64_t> limit;
  std::string limit_source;         // the file that contains that limit
  std::uint64_t machine_bytes = 0;  // memory of the whole machine; 0: not known
  bool operator==(const MemoryCounters&) const = default;
};

// Supports cgroup v2 (memory.events, memory.max) and v1 (memory.oom_control,
// memory.limit_in_bytes). `cgroups` is where the cgroup file systems are mounted, `proc` where the
// proc file system is mounted.
MemoryCounters read_memory_counters(const std::string& cgroups = "/sys/fs/cgroup",
                                    const std::string& proc = "/proc");

// A number of bytes as text: "512 MiB", "1.5 GiB".
std::string bytes_text(std::uint64_t bytes);

}  // namespace paceline::launcher
