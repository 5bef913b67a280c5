#pragma once

// A worker in its own process, which can be killed and frozen.

#include <csignal>
#include <functional>
#include <utility>

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace paceline::rpc::testing_job {

// A process with a worker. Requires: the calling process has no threads yet.
class Process {
 public:
  explicit Process(const std::function<bool()>& body) : pid_(fork()) {
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // ends with the test, even if the test is killed
    _exit(body() && !testing::Test::HasFailure() ? 0 : 1);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  // Returns once the process has stopped.
  void freeze() const {
    kill(pid_, SIGSTOP);
    waitpid(pid_, nullptr, WUNTRACED);
  }
  void thaw() const { kill(pid_, SIGCONT); }
  void end() {
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, 0), nullptr, 0);
  }
  // Whether the process has ended normally and its body returned true.
  bool succeeds() {
    int status = 0;
    waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  pid_t pid_;
};

// Serves until a signal ends the process.
inline bool serve_for_ever() {
  for (;;) pause();
}

}  // namespace paceline::rpc::testing_job
