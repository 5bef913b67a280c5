#include "paceline/engine/telemetry/crash_reporter.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/engine/core/system/thread.h"

namespace paceline {

namespace {

constexpr std::array kSignals = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
constexpr int kLongestWaitMs = 10'000;
constexpr int kPauseMs = 10;
constexpr std::size_t kStackBytes = 64 << 10;

// The launcher's address, prepared before a crash, because the handler must not look anything up.
struct Launcher {
  sockaddr_un address{};
  socklen_t length = 0;
};
Launcher launcher;
std::atomic_flag first_crash = ATOMIC_FLAG_INIT;
std::atomic<bool> reported{false};
static_assert(std::atomic<bool>::is_always_lock_free);

// Formats "crash TID SIGNAL\n". Async-signal-safe.
std::size_t write_message(std::span<char, 48> text, int thread, int signal) {
  constexpr std::string_view kWord = "crash ";
  char* const end = text.data() + text.size();
  char* at = std::copy(kWord.begin(), kWord.end(), text.data());
  at = std::to_chars(at, end, thread).ptr;
  *at++ = ' ';
  at = std::to_chars(at, end, signal).ptr;
  *at++ = '\n';
  return static_cast<std::size_t>(at - text.data());
}

void pause_in_handler() {
  const timespec pause{.tv_sec = 0, .tv_nsec = kPauseMs * 1'000'000L};
  nanosleep(&pause, nullptr);
}

// Retries on EAGAIN, which means that the launcher's queue of connections is full for a moment.
bool connect_to_launcher(int fd) {
  const auto* const address = reinterpret_cast<const sockaddr*>(&launcher.address);
  for (int waited = 0; waited < kLongestWaitMs; waited += kPauseMs) {
    if (connect(fd, address, launcher.length) == 0) return true;
    if (errno != EAGAIN && errno != EINTR) return false;
    pause_in_handler();
  }
  return false;
}

// Reports the crash and returns once the launcher has read the stack. Async-signal-safe: it uses
// only system calls, and no wait with a Deadline, whose Vigil takes a mutex that the crashed thread
// may hold.
void tell_launcher(int signal) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return;
  // Any user can claim a name in the abstract namespace, so only a process of this user is trusted.
  const bool is_connected = connect_to_launcher(fd);
  const auto peer = peer_credentials(fd);
  if (is_connected && peer && peer->uid == getuid()) {
    prctl(PR_SET_PTRACER, peer->pid, 0, 0, 0);
    char message[48];
    const auto length = write_message(message, static_cast<int>(syscall(SYS_gettid)), signal);
    // These few bytes always fit into the buffer of a new connection.
    if (send_some(fd, std::as_bytes(std::span(message, length))) == static_cast<ssize_t>(length)) {
      pollfd answer{fd, POLLIN, 0};
      poll_for({&answer, 1}, std::chrono::milliseconds(kLongestWaitMs));
    }
  }
  close(fd);
}

// A second thread that crashes while the launcher reads the first one's stack must not end the
// process.
void wait_for_first() {
  for (int waited = 0; !reported.load() && waited < kLongestWaitMs; waited += kPauseMs)
    pause_in_handler();
}

// Shows the stack of the first thread that fails. `signal` is 0 if the process ends without a
// signal.
void show_stack(int signal) {
  if (!first_crash.test_and_set()) {
    tell_launcher(signal);
    reported = true;
  } else {
    wait_for_first();
  }
}

void on_crash(int signal, siginfo_t* info, void* /*context*/) {
  const int error = errno;
  show_stack(signal);
  std::signal(signal, SIG_DFL);
  // A fault is raised again when its instruction runs again; a signal that was sent must be sent
  // again.
  if (info->si_code <= 0) syscall(SYS_rt_tgsigqueueinfo, getpid(), gettid(), signal, info);
  errno = error;
}

bool prepare_address(const char* name) {
  const std::size_t length = std::strlen(name);
  if (length == 0 || length + 1 > sizeof launcher.address.sun_path) return false;
  launcher.address.sun_family = AF_UNIX;
  std::memcpy(launcher.address.sun_path + 1, name,
              length);  // after the leading zero of an abstract name
  launcher.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return true;
}

// Names the launcher to the kernel as a tracer (PR_SET_PTRACER): the launcher also inspects ranks
// that hang, and some systems allow only ancestors to do that. The launcher's pid is the number in
// "paceline-job/PID/...".
void allow_launcher(std::string_view name) {
  const auto slash = name.find('/');
  if (slash == std::string_view::npos) return;
  int pid = 0;
  std::from_chars(name.data() + slash + 1, name.data() + name.size(), pid);
  if (pid > 1) prctl(PR_SET_PTRACER, pid, 0, 0, 0);
}

// Whether the program handles this signal itself. The handlers of UCX, which an MPI library may
// load and which are installed before main(), do not count: they print addresses only, and do not
// tell the launcher.
bool is_handled(const struct sigaction& action) {
  const bool has_handler = (action.sa_flags & SA_SIGINFO) != 0 || action.sa_handler != SIG_DFL;
  Dl_info place{};
  return has_handler &&
         (dladdr(reinterpret_cast<const void*>(action.sa_sigaction), &place) == 0 ||
          place.dli_fname == nullptr || std::strstr(place.dli_fname, "/libucs.so") == nullptr);
}

// Gives the handler a stack of its own, because the thread's stack may have overflowed.
void prepare_stack() {
  stack_t old{};
  if (sigaltstack(nullptr, &old) != 0 || (old.ss_flags & SS_DISABLE) == 0) return;
  void* const memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) return;
  stack_t stack{};
  stack.ss_sp = memory;
  stack.ss_size = kStackBytes;
  if (sigaltstack(&stack, nullptr) != 0) munmap(memory, kStackBytes);
}

}  // namespace

void report_crashes_to_launcher() noexcept {
  const char* const name = std::getenv("PACELINE_JOB_SOCKET");
  const char* const wanted = std::getenv("PACELINE_CRASH_REPORT");
  if (name == nullptr || (wanted != nullptr && std::string_view(wanted) == "0")) return;
  if (launcher.length != 0 || !prepare_address(name)) return;
  allow_launcher(name);
  prepare_stack();
  struct sigaction action {};
  action.sa_sigaction = on_crash;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  for (const int signal : kSignals) {
    struct sigaction old {};
    if (sigaction(signal, nullptr, &old) != 0 || is_handled(old)) continue;
    sigaction(signal, &action, nullptr);
  }
}

void show_stack_to_launcher() noexcept {
  if (launcher.length != 0) show_stack(0);
}

namespace {

constexpr std::chrono::seconds kLongestWrite{10};
constexpr std::string_view kMark = "error: ";

constinit std::terminate_handler handler_before = nullptr;
constinit std::atomic_flag first_error = ATOMIC_FLAG_INIT;

// Cuts the list of frames from the text of a c10::Error, "TEXT\nException raised from F at FILE
// (most recent call first):\nframe #0: ...".
std::string without_frames(std::string text) {
  constexpr std::string_view kFrames = " (most recent call first):\nframe #0: ";
  text.resize(std::min(text.size(), text.find(kFrames)));
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

// Flushes stdout unless another thread holds its lock, perhaps forever.
void flush_stdout() {
  if (ftrylockfile(stdout) != 0) return;
  fflush_unlocked(stdout);
  funlockfile(stdout);
}

int exit_code_of_current() {
  if (!std::current_exception()) return EXIT_FAILURE;
  try {
    throw;
  } catch (const std::exception& error) {
    return exit_code_of(error);
  } catch (...) {
    return EXIT_FAILURE;
  }
}

// The text of the current exception; empty if there is none, or if it is not a std::exception.
std::string text_of_current() {
  if (!std::current_exception()) return "";
  try {
    throw;
  } catch (const std::exception& error) {
    return uncaught_text(typeid(error).name(), error.what(), log::rank());
  } catch (...) {
    return "";
  }
}

// The variable is read only when the process ends, because the program may set it itself.
bool is_wanted() {
  const char* const value = std::getenv("PACELINE_CRASH_REPORT");
  return value == nullptr || std::string_view(value) != "0";
}

[[noreturn]] void on_terminate() {
  if (first_error.test_and_set()) {
    for (;;) pause();  // another thread ends the process
  }
  const std::string text = is_wanted() ? text_of_current() : "";
  if (text.empty()) {
    handler_before();
    std::abort();
  }
  flush_stdout();
  write_whole(STDERR_FILENO, std::as_bytes(std::span(text)), Deadline::after(kLongestWrite));
  show_stack_to_launcher();
  say_last_words(text.substr(kMark.size(), text.size() - kMark.size() - 1));
  _exit(exit_code_of_current());
}

[[maybe_unused]] const bool kIsInstalled = (report_uncaught_errors(), true);

}  // namespace

std::string uncaught_text(const char* type, const std::string& what, int rank) {
  std::string text = without_frames(what);
  if (text.empty()) text = "no error message";
  if (text == std::bad_alloc().what())
    text = "a memory allocation failed; check ulimit -v and the requested size";
  const std::string_view name = type;
  if (name != typeid(Error).name() && name != typeid(DamagedState).name())
    text = demangled(type) + ": " + text;
  const bool names_rank = text.starts_with("rank ");
  const std::string who = rank < 0 || names_rank ? "" : "rank " + std::to_string(rank) + ": ";
  return std::string(kMark) + who + text + "\n";
}

void report_uncaught_errors() noexcept {
  if (std::get_terminate() != __gnu_cxx::__verbose_terminate_handler) return;
  handler_before = std::set_terminate(on_terminate);
}

void do_not_report_uncaught_errors() noexcept {
  if (std::get_terminate() == on_terminate) std::set_terminate(handler_before);
}

namespace {

constexpr std::chrono::seconds kLongestLastWords{2};

struct Registry {
  std::mutex mutex;  // guards `all`, and keeps each object alive while its function is called
  std::vector<const LastWords*> all;
};

// The registry is never destroyed, because a program's groups may end after main().
Registry& registry() {
  static auto* const instance = new Registry;
  return *instance;
}

struct Done {
  std::mutex mutex;  // guards `is_done`
  std::condition_variable changed;
  bool is_done = false;
};

}  // namespace

LastWords::LastWords(Say say) : say_(std::move(say)) {
  const std::lock_guard lock(registry().mutex);
  registry().all.push_back(this);
}

LastWords::~LastWords() {
  const std::lock_guard lock(registry().mutex);
  std::erase(registry().all, this);
}

void say_last_words(const std::string& text) noexcept try {
  const auto done = std::make_shared<Done>();
  auto thread = start_thread("paceline-last", [done, text] {
    try {
      const std::lock_guard lock(registry().mutex);
      for (const LastWords* one : registry().all) one->say_(text);
    } catch (...) {  // the peers then learn only that this process has ended
    }
    const std::lock_guard lock(done->mutex);
    done->is_done = true;
    done->changed.notify_all();
  });
  thread.detach();
  std::unique_lock lock(done->mutex);
  done->changed.wait_for(lock, kLongestLastWords, [&] { return done->is_done; });
} catch (...) {  // without memory or threads the peers learn only that this process has ended
}

}  // namespace paceline
