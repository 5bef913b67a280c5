#include "paceline/launcher/process/orphans.h"

#include <csignal>
#include <utility>

#include <sys/signalfd.h>
#include <sys/wait.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/io.h"

namespace paceline::launcher {
namespace {

Fd make_child_signal_fd() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  Fd fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) throw system_error("signalfd()");
  return fd;
}

}  // namespace

Orphans::Orphans(EventLoop& loop) : ends_(make_child_signal_fd()) {
  loop.watch(ends_.get(), [this] { may_wait_ = true; });
}

bool Orphans::may_wait() {
  if (!std::exchange(may_wait_, false)) return false;
  signalfd_siginfo info;
  while (read_record(ends_.get(), info)) {
  }
  return true;
}

void Orphans::reap(const std::function<bool(pid_t pid)>& is_owned) {
  for (;;) {
    siginfo_t ended{};
    if (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid == 0) return;
    if (is_owned(ended.si_pid)) {
      may_wait_ = true;  // look again once its pidfd has been seen
      return;
    }
    waitpid(ended.si_pid, nullptr, 0);
  }
}

}  // namespace paceline::launcher
