#include "paceline/launcher/process/dying_process.h"

#include <fstream>
#include <sstream>
#include <string>

#include <poll.h>
#include <sys/wait.h>

#include "paceline/engine/core/socket.h"

namespace paceline::launcher {
namespace {

constexpr unsigned long kExiting = 0x4;  // PF_EXITING of linux/sched.h

// "pid (name) state ppid group session tty tpgid flags ...": the name may hold anything.
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
