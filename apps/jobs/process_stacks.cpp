#include "apps/jobs/process_stacks.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string_view>

#include <elfutils/libdwfl.h>
#include <fmt/format.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"

namespace paceline::apps {

namespace {

constexpr std::size_t kMaxFrames = 64;
constexpr std::size_t kLongestName = 120;
constexpr std::size_t kDeepestRuntime = 24;  // frames between a throw or an abort and the signal

std::vector<pid_t> threads_of(pid_t pid) {
  std::vector<pid_t> threads;
  std::error_code error;
  const std::string folder = fmt::format("/proc/{}/task", pid);
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    threads.push_back(std::atoi(entry.path().filename().c_str()));
  }
  std::sort(threads.begin(), threads.end());  // the first one is the main thread
  return threads;
}

std::string name_of_thread(pid_t pid, pid_t thread) {
  std::ifstream file(fmt::format("/proc/{}/task/{}/comm", pid, thread));
  std::string name;
  std::getline(file, name);
  return name;
}

[[noreturn]] void refuse(pid_t pid, int status) {
  if (status == ESRCH)
    throw Error(ErrorCode::kSystem, fmt::format("process {} no longer exists", pid));
  if (status != EPERM) throw system_error(fmt::format("inspecting process {}", pid), status);
  throw Error(
      ErrorCode::kSystem,
      fmt::format("process {} cannot be inspected: it belongs to another user, has a debugger, "
                  "or ptrace is forbidden here (/proc/sys/kernel/yama/ptrace_scope, a container "
                  "without SYS_PTRACE)",
                  pid));
}

// Stops threads until release(). Leaves out a thread that ends in the meantime.
class StoppedThreads {
 public:
  explicit StoppedThreads(pid_t pid, const std::vector<pid_t>& threads) {
    for (const pid_t thread : threads) {
      if (ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) == 0) {
        threads_.push_back(thread);
      } else if (errno != ESRCH || thread == pid) {
        const int status = errno;
        release();
        refuse(pid, status);
      }
    }
    std::erase_if(threads_, [](pid_t thread) { return !stop(thread); });
  }
  StoppedThreads(const StoppedThreads&) = delete;
  StoppedThreads& operator=(const StoppedThreads&) = delete;
  ~StoppedThreads() { release(); }

  const std::vector<pid_t>& threads() const { return threads_; }

  void release() {
    for (const pid_t thread : threads_) ptrace(PTRACE_DETACH, thread, nullptr, nullptr);
    threads_.clear();
  }

 private:
  static bool stop(pid_t thread) {
    if (ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) != 0) return false;
    for (;;) {
      int status = 0;
      if (waitpid(thread, &status, __WALL) < 0) {
        if (errno == EINTR) continue;
        return false;
      }
      if (!WIFSTOPPED(status)) return false;
      if (status >> 16 == PTRACE_EVENT_STOP) return true;
      // Another signal was pending: delivers it; the stop that was asked for follows.
      ptrace(PTRACE_CONT, thread, nullptr, reinterpret_cast<void*>(WSTOPSIG(status)));
    }
  }

  std::vector<pid_t> threads_;
};

struct EndDwfl {
  void operator()(Dwfl* dwfl) const { dwfl_end(dwfl); }
};
using DwflPtr = std::unique_ptr<Dwfl, EndDwfl>;

DwflPtr open_process(pid_t pid) {
  unsetenv("DEBUGINFOD_URLS");  // libdw must not fetch files over a network
  static char* no_path = nullptr;
  static const Dwfl_Callbacks callbacks = {.find_elf = dwfl_linux_proc_find_elf,
                                           .find_debuginfo = dwfl_standard_find_debuginfo,
                                           .section_address = nullptr,
                                           .debuginfo_path = &no_path};
  DwflPtr dwfl(dwfl_begin(&callbacks));
  const auto failed = [&](int status) {
    if (status > 0) refuse(pid, status);
    throw Error(ErrorCode::kSystem,
                fmt::format("inspecting process {}: {}", pid, dwfl_errmsg(dwfl_errno())));
  };
  if (!dwfl) failed(-1);
  if (const int status = dwfl_linux_proc_report(dwfl.get(), pid); status != 0) failed(status);
  if (dwfl_report_end(dwfl.get(), nullptr, nullptr) != 0) failed(-1);
  if (const int status = dwfl_linux_proc_attach(dwfl.get(), pid, true); status != 0) failed(status);
  return dwfl;
}

// A code address. For a calling frame it is the return address minus 1, so that it lies inside the
// call. `interrupted` marks frames that made no call: the innermost one, a signal trampoline, and
// the code that the signal interrupted.
struct Address {
  Dwarf_Addr pc = 0;
  bool interrupted = false;
};
using Addresses = std::vector<Address>;

int add_frame(Dwfl_Frame* frame, void* target) {
  auto& addresses = *static_cast<Addresses*>(target);
  Dwarf_Addr pc = 0;
  bool interrupted = false;
  if (!dwfl_frame_pc(frame, &pc, &interrupted)) return DWARF_CB_ABORT;
  addresses.push_back({interrupted ? pc : pc - 1, interrupted});
  return addresses.size() < kMaxFrames ? DWARF_CB_OK : DWARF_CB_ABORT;
}

// Turns "ns::f(int, std::vector<int>) const" into "ns::f".
std::string without_parameters(std::string name) {
  if (name.ends_with(" const")) name.resize(name.size() - 6);
  if (!name.ends_with(')')) return name;
  int depth = 0;
  for (std::size_t i = name.size(); i-- > 0;) {
    if (name[i] == ')') ++depth;
    if (name[i] == '(' && --depth == 0) return i == 0 ? name : name.substr(0, i);
  }
  return name;
}

std::string readable(const char* symbol) {
  std::string name = demangled(symbol);
  if (name != symbol) name = without_parameters(std::move(name));
  name = name.substr(0, name.find('@'));  // removes the version of a C library symbol
  if (name.size() > kLongestName) name = name.substr(0, kLongestName) + "...";
  return name;
}

struct Frame {
  std::string symbol;  // as the linker knows it; empty: none
  std::string text;
  bool interrupted = false;
};

Frame describe_place(Dwfl* dwfl, Dwarf_Addr address) {
  Dwfl_Module* const module = dwfl_addrmodule(dwfl, address);
  if (module == nullptr) return {"", fmt::format("{:#x}", address)};
  if (const char* symbol = dwfl_module_addrname(module, address)) {
    Frame frame{symbol, readable(symbol)};
    int line = 0;
    Dwfl_Line* const source = dwfl_module_getsrc(module, address);
    if (source != nullptr) {
      const char* file = dwfl_lineinfo(source, nullptr, &line, nullptr, nullptr, nullptr);
      if (file != nullptr) {
        frame.text +=
            fmt::format(" ({}:{})", std::filesystem::path(file).filename().string(), line);
      }
    }
    return frame;
  }
  Dwarf_Addr start = 0;
  const char* path =
      dwfl_module_info(module, nullptr, &start, nullptr, nullptr, nullptr, nullptr, nullptr);
  return {"", fmt::format("{}+{:#x}",
                          path == nullptr ? "?" : std::filesystem::path(path).filename().string(),
                          address - start)};
}

Frame describe(Dwfl* dwfl, const Address& address) {
  Frame frame = describe_place(dwfl, address.pc);
  frame.interrupted = address.interrupted;
  return frame;
}

bool is_any_of(std::string_view symbol, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), symbol) != names.end();
}

// Removes the frames of the handler, and those of libraries between the program and the signal.
void begin_at_the_cause(std::vector<Frame>& frames) {
  const auto searched = [&] {
    return std::span(frames).first(std::min(frames.size(), kDeepestRuntime));
  };
  const auto erase_before = [&](std::size_t first) {
    frames.erase(frames.begin(), frames.begin() + static_cast<std::ptrdiff_t>(first));
  };
  std::size_t struck = 0;
  for (std::size_t i = 0; i < searched().size(); ++i) {
    if (frames[i].interrupted) struck = i;
  }
  erase_before(struck);
  std::size_t runtime = 0;
  for (std::size_t i = 0; i < searched().size(); ++i) {
    if (is_any_of(frames[i].symbol,
                  {"abort", "__assert_fail", "__cxa_throw", "__cxa_rethrow",
                   "_ZSt17rethrow_exceptionNSt15__exception_ptr13exception_ptrE"})) {
      runtime = i + 1;
    }
  }
  // The function that assert() calls has no symbol in libc.
  while (runtime > 0 && runtime < frames.size() && frames[runtime].symbol.empty() &&
         frames[runtime].text.starts_with("libc.so")) {
    ++runtime;
  }
  erase_before(runtime);
}

}  // namespace

std::vector<ThreadStack> read_stacks(const StackQuestion& question,
                                     const std::function<void()>& released) {
  auto threads = question.threads.empty() ? threads_of(question.pid) : question.threads;
  if (threads.empty()) refuse(question.pid, ESRCH);
  StoppedThreads stopped(question.pid, threads);
  const DwflPtr dwfl = open_process(question.pid);
  threads = stopped.threads();
  std::vector<Addresses> addresses(threads.size());
  std::vector<ThreadStack> stacks(threads.size());
  for (std::size_t i = 0; i < threads.size(); ++i) {
    stacks[i] = {threads[i], name_of_thread(question.pid, threads[i]), {}};
    dwfl_getthread_frames(dwfl.get(), threads[i], add_frame, &addresses[i]);
  }
  stopped.release();
  if (released) released();
  for (std::size_t i = 0; i < threads.size(); ++i) {
    std::vector<Frame> frames;
    for (const Address& address : addresses[i]) frames.push_back(describe(dwfl.get(), address));
    if (question.crashed) begin_at_the_cause(frames);
    for (Frame& frame : frames) stacks[i].frames.push_back(std::move(frame.text));
  }
  return stacks;
}

}  // namespace paceline::apps
