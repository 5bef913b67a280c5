#pragma once

// Reports how a child process of the test ended. Kills a child that hangs.

#include <chrono>
#include <csignal>
#include <cstring>
#include <string>

#include <sys/wait.h>

#include "tests/harness/wait_until.h"

namespace paceline::harness {

// "exit code 0", "signal Killed", or "hung".
inline std::string end_of(pid_t pid) {
  int status = 0;
  const auto deadline = Deadline::after(std::chrono::seconds(60));
  if (!wait_until([&] { return ::waitpid(pid, &status, WNOHANG) == pid; }, deadline)) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, &status, 0);
    return "hung";
  }
  if (WIFSIGNALED(status)) return std::string("signal ") + ::strsignal(WTERMSIG(status));
  return "exit code " + std::to_string(WEXITSTATUS(status));
}

}  // namespace paceline::harness
