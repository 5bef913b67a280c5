#include "paceline/launcher/diagnosis/kernel_log.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <unistd.h>

#include "paceline/engine/core/io.h"

namespace paceline::launcher {
namespace {

constexpr std::size_t kLongestRecord = 8192;
constexpr int kMostRecords = 100'000;  // a log that is written faster than it is read

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
  for (int i = 0; file_ && i < kMostRecords; ++i) {
    const ssize_t length = read_some(file_.get(), std::as_writable_bytes(std::span(record)));
    if (length < 0 && errno == EPIPE) continue;  // records were lost
    if (length <= 0) break;
    const auto kill = parse_kernel_kill(std::string(record, static_cast<std::size_t>(length)));
    if (kill && kill->pid == pid) found = kill;
  }
  return found;
}

}  // namespace paceline::launcher
