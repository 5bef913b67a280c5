#include "paceline/launcher/process/process_end.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/core/system/socket.h"

namespace paceline::launcher {

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
