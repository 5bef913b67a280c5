#include "paceline/launcher/process/process.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/launcher/process/rank_resources.h"

namespace paceline::launcher {

Environment inherited_environment() {
  Environment env;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const char* equals = std::strchr(*entry, '=');
    if (equals != nullptr) env.emplace(std::string(*entry, equals - *entry), equals + 1);
  }
  return env;
}

Environment added_variables(const Environment& worker, const Environment& inherited) {
  Environment added;
  for (const auto& [name, value] : worker) {
    const auto before = inherited.find(name);
    if (before == inherited.end() || before->second != value) added.emplace(name, value);
  }
  return added;
}

namespace {

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> lines_of(const Environment& environment) {
  std::vector<std::string> lines;
  for (const auto& [name, value] : environment) lines.push_back(name + "=" + value);
  return lines;
}

void restore_signals() {
  signal(SIGPIPE, SIG_DFL);
  signal(SIGTTOU, SIG_DFL);
  signal(SIGXFSZ, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

void bind_to(const std::vector<int>& cpus) {
  if (cpus.empty() || bind_to_cpus(cpus)) return;
  dprintf(STDERR_FILENO, "paceline: could not bind to the chosen cpus: %s; continuing unbound\n",
          std::strerror(errno));
}

[[noreturn]] void become(const ProcessSpec& spec, pid_t parent, char** argv, char** envp) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(128 + SIGKILL);  // the parent died before prctl() took effect
  prctl(PR_SET_PTRACER, parent, 0, 0, 0);  // the launcher's helpers may read the rank's stack
  dup2(spec.stdin_fd, STDIN_FILENO);
  dup2(spec.stdout_fd, STDOUT_FILENO);
  dup2(spec.stderr_fd, STDERR_FILENO);
  for (const int fd : spec.inherited) fcntl(fd, F_SETFD, 0);
  bind_to(spec.cpus);
  prefer_memory_of(spec.numa_nodes);
  restore_signals();
  restore_descriptor_limit();
  execve(spec.path.c_str(), argv, envp);
  const int error = errno;
  const char* hint = "";
  if (error == ENOEXEC) hint = " (another machine's binary, or a script without a #! line)";
  if (error == ENOENT && access(spec.path.c_str(), F_OK) == 0) {
    hint =
        " (the file exists, but the interpreter in its #! line or the loader that the binary needs "
        "does not)";
  }
  dprintf(STDERR_FILENO, "paceline: cannot execute %s: %s%s\n", spec.path.c_str(),
          std::strerror(error), hint);
  _exit(error == ENOENT ? kExitNotFound : kExitNotExecutable);
}

}  // namespace

Process start_process(const ProcessSpec& spec) {
  std::vector<std::string> command = spec.command;
  std::vector<std::string> lines = lines_of(spec.environment);
  auto argv = pointers_to(command);
  auto envp = pointers_to(lines);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) throw system_error("starting a process (see ulimit -u and the pids cgroup)");
  if (pid == 0) become(spec, parent, argv.data(), envp.data());
  // Parent and child both call setpgid(), so the group exists before any signal is sent to it.
  setpgid(pid, pid);
  return {pid, open_pidfd(pid)};
}

const std::vector<int>& handled_signals() {
  static const auto& signals = *[] {
    auto all = new std::vector<int>(kStopSignals.begin(), kStopSignals.end());
    all->insert(all->end(), {SIGUSR1, SIGUSR2, SIGCHLD});
    return all;
  }();
  return signals;
}

// SIGTERM is never ignored, because it must always be possible to end a job.
bool stays_ignored(int signal) {
  const bool of_terminal =
      signal == SIGHUP || signal == SIGINT || signal == SIGQUIT || signal == SIGTSTP;
  struct sigaction action {};
  return of_terminal && sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

void block_handled_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : handled_signals()) {
    if (!stays_ignored(signal)) sigaddset(&set, signal);
  }
  sigprocmask(SIG_BLOCK, &set, nullptr);
}

std::vector<int> outside_signals() {
  std::vector<int> signals = handled_signals();
  std::erase(signals, SIGCHLD);
  return signals;
}

bool is_for_ranks(int signal) {
  return signal == SIGUSR1 || signal == SIGUSR2 || signal == SIGTSTP || signal == SIGCONT;
}

Fd make_signal_fd(std::span<const int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  Fd fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) throw system_error("signalfd()");
  return fd;
}

Pipe make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw system_error("making a pipe");
  return {Fd(ends[0]), Fd(ends[1])};
}

Fd open_pidfd(pid_t pid) {
  Fd fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!fd) throw system_error("pidfd_open (Linux 5.3 or newer is needed)");
  return fd;
}

std::string describe(const RankEnd& end) {
  return end.signal != 0 ? fmt::format("killed by {}", signal_name(end.signal))
                         : fmt::format("exit code {}", end.exit_code);
}

int await_end(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

int shell_status(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

RankEnd rank_end(int rank, pid_t pid, int wait_status, std::chrono::duration<double> after) {
  RankEnd end{.rank = rank, .pid = pid, .after = after};
  if (WIFSIGNALED(wait_status)) end.signal = WTERMSIG(wait_status);
  if (WIFEXITED(wait_status)) end.exit_code = WEXITSTATUS(wait_status);
  return end;
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : fmt::format("signal {}", signal);
}

void end_by_signal(int signal) {
  std::fflush(nullptr);
  prctl(PR_SET_DUMPABLE, 0);  // no core file for SIGQUIT or SIGXCPU
  std::signal(signal, SIG_DFL);
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, signal);
  raise(signal);
  sigprocmask(SIG_UNBLOCK, &one, nullptr);  // the signal ends this process here
  _exit(128 + signal);
}

namespace {

constexpr unsigned long kExiting = 0x4;  // PF_EXITING of linux/sched.h

// Reads "pid (name) state ppid group session tty tpgid flags ..."; the name may contain anything.
bool is_exiting(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const auto end = text.rfind(')');
  if (end == std::string::npos) return false;
  std::istringstream fields(text.substr(end + 1));
  std::string skipped;
  for (int i = 0; i < 6; ++i) fields >> skipped;
  unsigned long flags = 0;
  return (fields >> flags) && (flags & kExiting) != 0;
}

}  // namespace

bool died_of_signal(const Process& child, Deadline deadline) {
  if (!is_exiting(child.pid) || !wait_ready(child.pidfd.get(), POLLIN, deadline)) return false;
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(child.pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == child.pid && info.si_code != CLD_EXITED;
}

}  // namespace paceline::launcher
