#pragma once

// A process that runs instruction by instruction (ptrace), so that a test can stop or kill it at
// any place of an operation.

#include <csignal>
#include <cstdint>
#include <functional>
#include <utility>

#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

namespace paceline::tables::testing_job {

class SteppedProcess {
 public:
  // Starts `body` in a child, which stops at the call of pause_here().
  explicit SteppedProcess(const std::function<bool()>& body) : pid_(fork()) {
    if (pid_ == 0) {
      ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
      _exit(body() && !testing::Test::HasFailure() ? 0 : 1);
    }
    waitpid(pid_, &status_, 0);
  }
  SteppedProcess(const SteppedProcess&) = delete;
  SteppedProcess& operator=(const SteppedProcess&) = delete;
  ~SteppedProcess() { kill_now(); }

  static void pause_here() { raise(SIGSTOP); }

  // One instruction. Returns false when the process has ended.
  bool step() {
    if (ptrace(PTRACE_SINGLESTEP, pid_, nullptr, nullptr) != 0) return false;
    waitpid(pid_, &status_, 0);
    if (WIFSTOPPED(status_)) return true;
    pid_ = 0;
    return false;
  }
  // At most `limit` instructions, while `goes_on` returns true. Returns their number.
  std::uint64_t step_while(const std::function<bool()>& goes_on, std::uint64_t limit = 2'000'000) {
    std::uint64_t steps = 0;
    while (steps < limit && goes_on() && step()) ++steps;
    return steps;
  }
  void kill_now() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, 0), nullptr, 0);
  }
  // Lets the process run on, and returns whether its body returned true.
  bool succeeds() {
    ptrace(PTRACE_DETACH, pid_, nullptr, nullptr);
    int status = 0;
    waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  pid_t pid_;
  int status_ = 0;
};

}  // namespace paceline::tables::testing_job
