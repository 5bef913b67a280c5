#pragma once

// How much more memory this process may take before the kernel ends it or another: what the machine
// has left, and the limit of each cgroup that it is in. Files that are kept in memory count as
// free, and so does swap.

#include <cstdint>
#include <optional>
#include <string>

namespace paceline {

struct MemoryRoom {
  std::uint64_t bytes = 0;
  std::string source;  // "of the machine's memory", "below the limit of /sys/fs/cgroup/job"
  bool operator==(const MemoryRoom&) const = default;
};

// Where a process's memory is counted: the folder of its cgroup below `mount`.
struct MemoryCgroup {
  std::string mount;
  std::string path;  // begins with a slash
  bool is_unified = true;
};
// `root` is where the cgroup file systems are mounted, `membership` the text of /proc/self/cgroup.
// Nothing when no cgroup counts it.
std::optional<MemoryCgroup> memory_cgroup(const std::string& root, const std::string& membership);

// Nothing when the machine does not say.
std::optional<MemoryRoom> memory_room(const std::string& cgroups = "/sys/fs/cgroup",
                                      const std::string& proc = "/proc");

}  // namespace paceline
