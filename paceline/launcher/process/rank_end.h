#pragma once

// How the process of a rank ended. A value.

#include <chrono>
#include <cstdint>
#include <string>

#include <sys/types.h>

#include "paceline/engine/core/exit_code.h"

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

// From the status word of waitpid.
RankEnd rank_end(int rank, pid_t pid, int wait_status, std::chrono::duration<double> after);

// "SIGKILL", "SIGTERM", ...
std::string signal_name(int signal);

// "exit code 3", "killed by SIGSEGV".
std::string describe(const RankEnd& end);

}  // namespace paceline::launcher
