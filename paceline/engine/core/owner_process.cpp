#include "paceline/engine/core/owner_process.h"

#include <atomic>

#include <sys/mman.h>
#include <unistd.h>

namespace paceline {
namespace {

using Mark = std::atomic<pid_t>;

// All zero in a process that has not marked it. Null where the kernel cannot wipe. Never unmapped.
Mark* make_mark() {
  const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return nullptr;
  if (madvise(page, bytes, MADV_WIPEONFORK) == 0) return static_cast<Mark*>(page);
  munmap(page, bytes);
  return nullptr;
}

}  // namespace

pid_t OwnerProcess::current() {
  static Mark* const mark = make_mark();
  if (mark == nullptr) return getpid();
  pid_t pid = mark->load(std::memory_order_relaxed);
  if (pid == 0) {
    pid = getpid();
    mark->store(pid, std::memory_order_relaxed);
  }
  return pid;
}

}  // namespace paceline
