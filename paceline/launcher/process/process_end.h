#pragma once

// How processes end: the end of a rank as a value; a check whether a signal is ending a process at
// this moment; and a function that ends this process by a signal.

#include <chrono>
#include <cstdint>
#include <string>

#include <sys/types.h>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/error.h"
#include "paceline/launcher/process/process.h"

namespace paceline::launcher {

struct RankEnd {
  int rank = -1;
  pid_t pid = -1;
  int exit_code = 0;
  int signal = 0;                              // 0: no signal ended the process
  std::chrono::duration<double> after{};       // how long the process ran
  std::chrono::steady_clock::time_point at{};  // when the process ended
  std::uint64_t peak_bytes = 0;                // resident memory; 0: not known

  // True for an agreed stop, too.
  bool failed() const { return exit_code != 0 || signal != 0; }
  bool stopped_as_agreed() const { return signal == 0 && exit_code == kStoppedAsAgreed; }
  // The status that a shell would report: the exit code, or 128 + signal.
  int status() const { return signal != 0 ? 128 + signal : exit_code; }
};

// Waits for a child, even if signals interrupt the call. Returns the status word of waitpid().
int await_end(pid_t child);
// The status that a shell would report for a status word: the exit code, or 128 + signal.
int shell_status(int wait_status);
// Makes a RankEnd from a status word.
RankEnd rank_end(int rank, pid_t pid, int wait_status, std::chrono::duration<double> after);

// The name of a signal: "SIGKILL", "SIGTERM", ...
std::string signal_name(int signal);

// A text such as "exit code 3" or "killed by SIGSEGV".
std::string describe(const RankEnd& end);

// Flushes stdio, then ends this process by `signal`, without a core file. If the kernel does not
// let the signal end it, because it is the first process of a container, exits with 128 + `signal`.
//
// A process that caught a signal should end by that signal, because parents distinguish this from
// an exit code. After Ctrl-C, the loop of a shell script goes on if the command exited, with any
// exit code, but ends if SIGINT killed the command. make removes an unfinished target if a signal
// killed its command. For systemd a process that SIGTERM killed has stopped cleanly, but exit code
// 143 is a failure.
[[noreturn]] void end_by_signal(int signal);

// Whether a signal has ended the child `child`, or is ending it. Requires: the child has not been
// waited for. If the child is about to end, waits for that until the deadline; otherwise returns at
// once.
//
// The kernel closes the connections of a dying process before it reports the process as ended. So a
// peer that exits because of the closed connection may be seen to end first.
bool died_of_signal(const Process& child, Deadline deadline);

}  // namespace paceline::launcher
