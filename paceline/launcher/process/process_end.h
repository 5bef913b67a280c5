#pragma once

// How processes end: the end of a rank as a value, whether a signal is ending a process at this
// moment, and ending this process as a signal would.

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
  int signal = 0;                         // 0: it exited by itself
  std::chrono::duration<double> after{};  // since its start
  std::chrono::steady_clock::time_point at{};
  std::uint64_t peak_bytes = 0;  // resident memory; 0: not known

  bool failed() const { return exit_code != 0 || signal != 0; }
  bool stopped_as_agreed() const { return signal == 0 && exit_code == kStoppedAsAgreed; }
  // As a shell reports it: the exit code, or 128 + signal.
  int status() const { return signal != 0 ? 128 + signal : exit_code; }
};

// Waits for a child, also when signals interrupt; the status word of waitpid.
int await_end(pid_t child);
// As a shell reports that word: the exit code, or 128 + signal.
int shell_status(int wait_status);
// From that word.
RankEnd rank_end(int rank, pid_t pid, int wait_status, std::chrono::duration<double> after);

// "SIGKILL", "SIGTERM", ...
std::string signal_name(int signal);

// "exit code 3", "killed by SIGSEGV".
std::string describe(const RankEnd& end);

// Flushes stdio, then dies of `signal`, without a core file. Where the kernel does not let it die,
// as a container's first process, it exits with 128 + `signal`.
//
// A process that caught a signal ends so because parents distinguish the two: after a Ctrl-C a
// shell goes on with its loop when a command exits, whatever the exit code, and ends the loop when
// SIGINT killed it; make removes half-made targets; systemd takes SIGTERM for a clean stop and exit
// code 143 for a failure.
[[noreturn]] void end_by_signal(int signal);

// True for a child, not waited for yet, that a signal has ended or is ending. Waits until the
// deadline for one that is on its way out; does not wait for any other.
//
// A process on its way out breaks its connections before the kernel calls it ended. So a process
// that notices may be seen to end first, although it only followed.
bool died_of_signal(const Process& child, Deadline deadline);

}  // namespace paceline::launcher
