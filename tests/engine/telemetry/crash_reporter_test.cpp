// Reporting a crash must not use anything that the crashed thread may hold: this program's malloc()
// and pthread_mutex_lock() end the process with special exit codes once it has crashed.

#include "paceline/engine/telemetry/crash_reporter.h"

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/io.h"

namespace {

constexpr int kAllocated = 98;
constexpr int kLocked = 99;
std::atomic<bool> has_crashed{false};

}  // namespace

extern "C" {

void* __libc_malloc(std::size_t size);  // NOLINT(bugprone-reserved-identifier): glibc's

void* malloc(std::size_t size) noexcept {
  if (has_crashed) _exit(kAllocated);
  return __libc_malloc(size);
}

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  if (has_crashed) _exit(kLocked);
  using Lock = int (*)(pthread_mutex_t*);
  static const auto real = reinterpret_cast<Lock>(dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  return real(mutex);
}

}  // extern "C"

namespace paceline {
namespace {

using namespace std::chrono_literals;

// Listens like a launcher on an abstract socket name, as in PACELINE_JOB_SOCKET.
Fd listen_as(const std::string& name) {
  Fd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  EXPECT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
  EXPECT_EQ(::listen(listener.get(), 4), 0);
  return listener;
}

struct Crash {
  const char* what;
  int signal;
  void (*crash)();
};
volatile int* volatile nowhere = nullptr;
const Crash kCrashes[] = {
    {"a null pointer", SIGSEGV, [] { *nowhere = 1; }},
    {"abort()", SIGABRT, [] { std::abort(); }},
    {"an illegal instruction", SIGILL, [] { __builtin_trap(); }},
    {"a signal that was sent", SIGBUS, [] { ::raise(SIGBUS); }},
};

// The launcher stops the process while it reads its stacks, for longer than a Vigil tolerates.
TEST(CrashReporter, neither_allocates_nor_locks_and_leaves_the_signal) {
  for (const Crash& crash : kCrashes) {
    SCOPED_TRACE(crash.what);
    const std::string name = "paceline-job/" + std::to_string(::getpid()) + "/crash-test";
    const Fd listener = listen_as(name);
    const pid_t child = ::fork();
    if (child == 0) {
      ::setenv("PACELINE_JOB_SOCKET", name.c_str(), 1);
      ::unsetenv("PACELINE_CRASH_REPORT");
      report_crashes_to_launcher();
      has_crashed = true;
      crash.crash();
      ::_exit(0);
    }
    pollfd waiting{listener.get(), POLLIN, 0};
    ASSERT_EQ(poll_for({&waiting, 1}, 20s), 1);
    {
      const Fd connection(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      char message[64] = {};
      EXPECT_GT(read_some(connection.get(), std::as_writable_bytes(std::span(message))), 0);
      EXPECT_EQ(std::string(message),
                "crash " + std::to_string(child) + " " + std::to_string(crash.signal) + "\n");
      ::kill(child, SIGSTOP);
      std::this_thread::sleep_for(1300ms);  // its stacks are being read
      ::kill(child, SIGCONT);
      std::this_thread::sleep_for(700ms);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_FALSE(WIFEXITED(status)) << "exit code " << WEXITSTATUS(status);
    EXPECT_EQ(WTERMSIG(status), crash.signal);
  }
}

}  // namespace
}  // namespace paceline
