#include "paceline/launcher/process/signal_end.h"

#include <csignal>
#include <cstdio>

#include <sys/prctl.h>
#include <unistd.h>

namespace paceline::launcher {

void end_by_signal(int signal) {
  std::fflush(nullptr);
  prctl(PR_SET_DUMPABLE, 0);  // SIGQUIT, SIGXCPU
  std::signal(signal, SIG_DFL);
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, signal);
  raise(signal);
  sigprocmask(SIG_UNBLOCK, &one, nullptr);  // dies here
  _exit(128 + signal);
}

}  // namespace paceline::launcher
