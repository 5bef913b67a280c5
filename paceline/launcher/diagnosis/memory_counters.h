#pragma once

// How often the kernel has killed for lack of memory, and how much memory there is: read when a
// rank starts and when one is killed, it tells an out-of-memory kill from any other SIGKILL.

#include <cstdint>
#include <optional>
#include <string>

namespace paceline::launcher {

struct MemoryCounters {
  // Processes killed for lack of memory: in this process's cgroup, and on the whole machine.
  // Nothing: not readable.
  std::optional<std::uint64_t> cgroup_kills, machine_kills;
  // The smallest limit on the way up from this process's cgroup, in bytes; nothing: no limit.
  std::optional<std::uint64_t> limit;
  std::string limit_source;         // the file that says so
  std::uint64_t machine_bytes = 0;  // of the whole machine; 0: not known
  bool operator==(const MemoryCounters&) const = default;
};

// cgroup v2 (memory.events, memory.max) and v1 (memory.oom_control, memory.limit_in_bytes).
// `cgroups` is where the cgroup file systems are mounted, `proc` the proc file system.
MemoryCounters read_memory_counters(const std::string& cgroups = "/sys/fs/cgroup",
                                    const std::string& proc = "/proc");

// "512 MiB", "1.5 GiB".
std::string bytes_text(std::uint64_t bytes);

}  // namespace paceline::launcher
