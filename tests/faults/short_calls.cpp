// A library for LD_PRELOAD that acts like a kernel at its least obliging. The calls with which the
// program itself (not a library beside it) reads and writes are interrupted, transfer less than
// they were asked to, or fail with EAGAIN although poll() has just reported that they can proceed.
// All of this may happen to any program; here it happens all the time.
//
// SHORT_CALLS_SEED chooses the sequence. SHORT_CALLS_LOG names a file to which every process
// appends, when it ends, how many calls were interrupted, refused and shortened.

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

namespace {

struct Counts {
  std::atomic<unsigned long> interrupted, refused, shortened;
};
Counts counts;

struct Range {
  std::uintptr_t begin = 0, end = 0;
};

// The address range of the program's own code. The loader lists the program first.
Range program_code() {
  Range range;
  dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void* to) {
        for (int i = 0; i < object->dlpi_phnum; ++i) {
          const auto& segment = object->dlpi_phdr[i];
          if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0) continue;
          const std::uintptr_t begin = object->dlpi_addr + segment.p_vaddr;
          *static_cast<Range*>(to) = {begin, begin + segment.p_memsz};
        }
        return 1;
      },
      &range);
  return range;
}

bool is_program(const void* caller) {
  static const Range code = program_code();
  const auto address = reinterpret_cast<std::uintptr_t>(caller);
  return address >= code.begin && address < code.end;
}

std::uint64_t first_state() {
  static std::atomic<std::uint64_t> threads;
  const char* seed = std::getenv("SHORT_CALLS_SEED");
  const auto number = std::strtoull(seed != nullptr ? seed : "1", nullptr, 10);
  return number * 0x9e3779b97f4a7c15U + ++threads * 0xbf58476d1ce4e5b9U +
         static_cast<std::uint64_t>(getpid());
}

std::uint64_t random_number() {
  thread_local std::uint64_t state = first_state();
  std::uint64_t mixed = state += 0x9e3779b97f4a7c15U;
  mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9U;
  mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebU;
  return mixed ^ mixed >> 31;
}

struct Kind {
  bool may_wait = false;   // the call may fail with EAGAIN
  bool is_stream = false;  // the call may transfer less
};

Kind kind_of(int fd) {
  struct stat status {};
  if (fstat(fd, &status) != 0) return {};
  if (S_ISFIFO(status.st_mode)) return {.may_wait = true, .is_stream = true};
  if (S_ISREG(status.st_mode)) return {.may_wait = false, .is_stream = true};
  if (!S_ISSOCK(status.st_mode)) return {};
  int type = 0;
  socklen_t size = sizeof type;
  getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size);
  return {.may_wait = true, .is_stream = type == SOCK_STREAM};
}

// Returns true, with errno set, if this call must fail. May make `size` smaller.
bool interferes(const void* caller, int fd, std::size_t& size) {
  if (!is_program(caller)) return false;
  const int error = errno;
  const Kind kind = kind_of(fd);
  errno = error;
  switch (random_number() % 5) {
    case 0:
      ++counts.interrupted;
      errno = EINTR;
      return true;
    case 1:
      if (!kind.may_wait) return false;
      ++counts.refused;
      errno = EAGAIN;
      return true;
    case 2:
    case 3:
      if (!kind.is_stream || size < 2) return false;
      ++counts.shortened;
      size = 1 + random_number() % (size - 1);
      return false;
    default:
      return false;
  }
}

bool interrupts(const void* caller) {
  if (!is_program(caller) || random_number() % 5 != 0) return false;
  ++counts.interrupted;
  errno = EINTR;
  return true;
}

// A copy of the parts of a scattered buffer. cut() keeps only the first bytes.
struct Parts {
  Parts(const iovec* from, std::size_t count) {
    for (; num < count && num < kMaxParts; ++num) {
      part[num] = from[num];
      size += from[num].iov_len;
    }
  }
  void cut(std::size_t wanted) {
    std::size_t kept = 0;
    for (; kept < num && wanted > 0; ++kept) {
      if (part[kept].iov_len > wanted) part[kept].iov_len = wanted;
      wanted -= part[kept].iov_len;
    }
    num = kept;
  }
  static constexpr std::size_t kMaxParts = 16;
  iovec part[kMaxParts];
  std::size_t num = 0, size = 0;
};

bool interferes(const void* caller, int fd, Parts& parts) {
  std::size_t size = parts.size;
  if (interferes(caller, fd, size)) return true;
  if (size < parts.size) parts.cut(size);
  return false;
}

struct Report {
  ~Report() {
    const char* path = std::getenv("SHORT_CALLS_LOG");
    if (path == nullptr) return;
    const int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0) return;
    dprintf(file, "%lu interrupted, %lu refused, %lu shortened\n", counts.interrupted.load(),
            counts.refused.load(), counts.shortened.load());
    close(file);
  }
} report;

}  // namespace

#define CALLER __builtin_return_address(0)

extern "C" {

ssize_t read(int fd, void* into, std::size_t size) {
  return interferes(CALLER, fd, size) ? -1 : syscall(SYS_read, fd, into, size);
}

ssize_t write(int fd, const void* from, std::size_t size) {
  return interferes(CALLER, fd, size) ? -1 : syscall(SYS_write, fd, from, size);
}

ssize_t pread(int fd, void* into, std::size_t size, off_t offset) {
  return interferes(CALLER, fd, size) ? -1 : syscall(SYS_pread64, fd, into, size, offset);
}

ssize_t pwrite(int fd, const void* from, std::size_t size, off_t offset) {
  return interferes(CALLER, fd, size) ? -1 : syscall(SYS_pwrite64, fd, from, size, offset);
}

ssize_t recv(int fd, void* into, std::size_t size, int flags) {
  if (interferes(CALLER, fd, size)) return -1;
  return syscall(SYS_recvfrom, fd, into, size, flags, nullptr, nullptr);
}

ssize_t send(int fd, const void* from, std::size_t size, int flags) {
  if (interferes(CALLER, fd, size)) return -1;
  return syscall(SYS_sendto, fd, from, size, flags, nullptr, 0);
}

ssize_t readv(int fd, const iovec* into, int count) {
  Parts parts(into, static_cast<std::size_t>(count));
  return interferes(CALLER, fd, parts) ? -1 : syscall(SYS_readv, fd, parts.part, parts.num);
}

ssize_t writev(int fd, const iovec* from, int count) {
  Parts parts(from, static_cast<std::size_t>(count));
  return interferes(CALLER, fd, parts) ? -1 : syscall(SYS_writev, fd, parts.part, parts.num);
}

ssize_t recvmsg(int fd, msghdr* message, int flags) {
  Parts parts(message->msg_iov, message->msg_iovlen);
  if (interferes(CALLER, fd, parts)) return -1;
  msghdr less = *message;
  less.msg_iov = parts.part;
  less.msg_iovlen = parts.num;
  const ssize_t got = syscall(SYS_recvmsg, fd, &less, flags);
  message->msg_controllen = less.msg_controllen;
  message->msg_namelen = less.msg_namelen;
  message->msg_flags = less.msg_flags;
  return got;
}

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  Parts parts(message->msg_iov, message->msg_iovlen);
  if (interferes(CALLER, fd, parts)) return -1;
  msghdr less = *message;
  less.msg_iov = parts.part;
  less.msg_iovlen = parts.num;
  return syscall(SYS_sendmsg, fd, &less, flags);
}

int accept4(int fd, sockaddr* address, socklen_t* length, int flags) {
  std::size_t nothing = 0;
  if (interferes(CALLER, fd, nothing)) return -1;
  return static_cast<int>(syscall(SYS_accept4, fd, address, length, flags));
}

// posix_fallocate() returns its error and does not set errno.
int posix_fallocate(int fd, off_t offset, off_t size) {
  if (interrupts(CALLER)) return EINTR;
  return syscall(SYS_fallocate, fd, 0, offset, size) == 0 ? 0 : errno;
}

int poll(pollfd* entries, nfds_t count, int limit) {
  if (interrupts(CALLER)) return -1;
  const timespec time{.tv_sec = limit / 1000, .tv_nsec = limit % 1000 * 1'000'000};
  const timespec* const until = limit < 0 ? nullptr : &time;
  return static_cast<int>(syscall(SYS_ppoll, entries, count, until, nullptr, 0));
}

int epoll_wait(int fd, epoll_event* events, int count, int limit) {
  if (interrupts(CALLER)) return -1;
  return static_cast<int>(syscall(SYS_epoll_pwait, fd, events, count, limit, nullptr, 0));
}

}  // extern "C"
