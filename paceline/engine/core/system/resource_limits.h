#pragma once

// How much cpu time and memory this process may use, within the limits of its control groups, of
// SLURM and of the machine.
//
// Thread safety: any thread may call the functions.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace paceline {

// One hierarchy of control groups, and a process's group in it.
struct CgroupMembership {
  std::string controllers;  // "cpu,cpuacct"; the unified hierarchy (cgroup v2) has none
  std::string path;         // below the hierarchy's mount

  bool is_unified() const { return controllers.empty(); }
  bool has(const std::string& controller) const;
};

// The text of the file `cgroup` in a process's folder of /proc.
std::string cgroup_text(const std::string& process = "/proc/self");
// The memberships in the text that cgroup_text() returns; malformed lines are skipped.
std::vector<CgroupMembership> cgroup_memberships(const std::string& text);
// The folder of a cgroup, the folders above it, and last `mount`, where its hierarchy is mounted.
std::vector<std::string> cgroup_folders(const std::string& mount, std::string_view path);

// The number in a file; nullopt for "max" or when there is no file.
std::optional<std::uint64_t> number_in_file(const std::string& path);
// Reads a file of lines "key number" or "key: number kB"; a key keeps its colon.
std::map<std::string, std::uint64_t> numbers_in_file(const std::string& path);

// A limit on this process's cpu time other than its affinity mask: a cgroup's limit (docker run
// --cpus, Kubernetes) or a SLURM allocation that no mask enforces.
struct CpuQuota {
  double cpus = 0;     // cpus that could be busy all the time
  std::string source;  // where the limit comes from: "the cgroup", "SLURM_CPUS_PER_TASK"
  bool operator==(const CpuQuota&) const = default;
};

// The limit of cgroup v2 (cpu.max) or v1 (cpu.cfs_quota_us): the smallest among this process's
// group and the groups above it. `root` is where the cgroup file systems are mounted, `membership`
// the text of /proc/self/cgroup. nullopt when there is no limit.
std::optional<CpuQuota> cgroup_cpu_quota(const std::string& root, const std::string& membership);

// The cpus that a SLURM task was allocated: SLURM_CPUS_PER_TASK in a step with several tasks per
// node, otherwise SLURM_CPUS_ON_NODE. Without a plugin that sets masks, every SLURM task may run on
// all cpus of the node, and only these variables show how many it was allocated. `variable` returns
// the value of an environment variable, or null when the variable is not set.
using VariableLookup = std::function<const char*(const char* name)>;
std::optional<CpuQuota> slurm_cpu_quota(const VariableLookup& variable);

// How much more memory this process may use before the kernel kills it or another process. The
// machine's free memory and every cgroup of the process limit this amount. The page cache counts as
// free, and so does swap.
struct MemoryRoom {
  std::uint64_t bytes = 0;
  std::string source;  // "of the machine's memory", "below the limit of /sys/fs/cgroup/job"
  bool operator==(const MemoryRoom&) const = default;
};

// cgroup v1 reports "no limit" as the largest multiple of the page size; any number from
// kNoMemoryLimit on means "no limit".
inline constexpr std::uint64_t kNoMemoryLimit = std::uint64_t{1} << 60;

// The cgroup that accounts for a process's memory, as a folder below `mount`.
struct MemoryCgroup {
  std::string mount;
  std::string path;  // begins with a slash
  bool is_unified = true;
};
// `root` is where the cgroup file systems are mounted, `membership` the text of /proc/self/cgroup.
// Returns nullopt when no cgroup accounts for the process's memory.
std::optional<MemoryCgroup> memory_cgroup(const std::string& root, const std::string& membership);

// Returns nullopt when the machine does not report its memory.
std::optional<MemoryRoom> memory_room(const std::string& cgroups = "/sys/fs/cgroup",
                                      const std::string& proc = "/proc");

}  // namespace paceline
