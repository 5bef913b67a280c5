#include "paceline/launcher/diagnosis/out_of_memory.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/resource_limits.h"

namespace paceline::launcher {

namespace {

constexpr std::size_t kLongestRecord = 8192;
constexpr int kMaxRecords = 100'000;  // a bound, in case the log is written faster than it is read

std::uint64_t kilobytes_behind(const std::string& text, const char* name) {
  const auto at = text.find(name);
  return at == std::string::npos ? 0 : std::strtoull(&text[at + std::strlen(name)], nullptr, 10);
}

}  // namespace

std::optional<KernelKill> parse_kernel_kill(const std::string& record) {
  const auto at = record.find("Killed process ");
  if (at == std::string::npos) return {};
  KernelKill kill;
  if (std::sscanf(&record[at], "Killed process %d", &kill.pid) != 1) return {};
  for (const char* part : {" anon-rss:", " file-rss:", " shmem-rss:"}) {
    kill.used_bytes += kilobytes_behind(record, part) * 1024;
  }
  kill.in_cgroup = record.find("Memory cgroup out of memory") != std::string::npos;
  return kill;
}

KernelLog::KernelLog(const char* path) : file_(open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  if (file_) lseek(file_.get(), 0, SEEK_END);
}

std::optional<KernelKill> KernelLog::find(pid_t pid) {
  std::optional<KernelKill> found;
  char record[kLongestRecord];
  for (int i = 0; file_ && i < kMaxRecords; ++i) {
    const ssize_t length = read_some(file_.get(), std::as_writable_bytes(std::span(record)));
    if (length < 0 && errno == EPIPE) continue;  // records were lost
    if (length <= 0) break;
    const auto kill = parse_kernel_kill(std::string(record, static_cast<std::size_t>(length)));
    if (kill && kill->pid == pid) found = kill;
  }
  return found;
}

namespace {

// The number that follows `key` in a file.
std::optional<std::uint64_t> number_of(const std::string& path, const std::string& key) {
  const auto numbers = numbers_in_file(path);
  const auto found = numbers.find(key);
  return found != numbers.end() ? std::optional(found->second) : std::nullopt;
}

void look_for_limit(const MemoryCgroup& hierarchy, MemoryCounters& counters) {
  const char* const limit_file = hierarchy.is_unified ? "memory.max" : "memory.limit_in_bytes";
  for (const std::string& folder : cgroup_folders(hierarchy.mount, hierarchy.path)) {
    const std::string file = fmt::format("{}/{}", folder, limit_file);
    const auto limit = number_in_file(file);
    if (!limit || *limit >= kNoMemoryLimit || (counters.limit && *limit >= *counters.limit))
      continue;
    counters.limit = limit;
    counters.limit_source = file;
  }
}

}  // namespace

MemoryCounters read_memory_counters(const std::string& cgroups, const std::string& proc) {
  MemoryCounters counters;
  counters.machine_kills = number_of(proc + "/vmstat", "oom_kill");
  counters.machine_bytes = number_of(proc + "/meminfo", "MemTotal:").value_or(0) * 1024;
  const auto hierarchy = memory_cgroup(cgroups, cgroup_text(proc + "/self"));
  if (!hierarchy) return counters;
  const std::string folder = hierarchy->mount + (hierarchy->path == "/" ? "" : hierarchy->path);
  counters.cgroup_kills = number_of(folder + "/memory.events", "oom_kill");
  if (!counters.cgroup_kills) {
    counters.cgroup_kills = number_of(folder + "/memory.oom_control", "oom_kill");
  }
  look_for_limit(*hierarchy, counters);
  return counters;
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr double kMiB = 1 << 20;
  const double mib = static_cast<double>(bytes) / kMiB;
  return mib < 1024 ? fmt::format("{:.0f} MiB", mib) : fmt::format("{:.1f} GiB", mib / 1024);
}

}  // namespace paceline::launcher
