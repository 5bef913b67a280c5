#include "tests/harness/standin_nvidia/segment.h"

#include <chrono>
#include <cstring>
#include <thread>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

namespace paceline::standin {

namespace {

// NCCL needs about this much for the buffers between two ranks of a host.
constexpr std::size_t kMinFree = 9 << 20;

}  // namespace

Segment* map_segment(const std::string& path, bool creates, std::string* why) {
  struct statvfs status {};
  if (statvfs("/dev/shm", &status) != 0 || status.f_bavail * status.f_frsize < kMinFree) {
    *why = "Error while creating shared memory segment " + path + " (size 9637888), No space left";
    return nullptr;
  }
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | (creates ? O_CREAT | O_EXCL : 0), 0600);
  if (fd < 0 || (creates && ftruncate(fd, sizeof(Segment)) != 0)) {
    *why = "open " + path + ": " + std::strerror(errno);
    if (fd >= 0) close(fd);
    return nullptr;
  }
  void* const memory = mmap(nullptr, sizeof(Segment), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (memory != MAP_FAILED) return static_cast<Segment*>(memory);
  *why = std::string("mmap: ") + std::strerror(errno);
  return nullptr;
}

void unmap_segment(Segment* segment) { munmap(segment, sizeof(Segment)); }

bool wait_until(const std::atomic<bool>& is_aborted, const std::function<bool()>& done) {
  for (int turn = 0; !done(); ++turn) {
    if (is_aborted) return false;
    if (turn < 50) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  return true;
}

bool barrier(Segment& segment, int rank, int size, const std::atomic<bool>& is_aborted) {
  const std::uint64_t mine = ++segment.arrived[static_cast<std::size_t>(rank)];
  return wait_until(is_aborted, [&] {
    for (int other = 0; other < size; ++other) {
      if (segment.arrived[static_cast<std::size_t>(other)] < mine) return false;
    }
    return true;
  });
}

}  // namespace paceline::standin
