#pragma once

// What a rank has as its stdout: a pseudo-terminal, because programs of every language write to a
// terminal line by line, but keep what they print to a pipe until 4 KiB or more have come together.
// So lines appear when they are printed, and a rank that is killed loses none. stderr, which no
// language keeps back, stays a pipe.
//
// The terminal is raw: bytes pass unchanged in both kinds. It is no process's controlling terminal,
// so it sends no signals. It has the size of the launcher's terminal, or 24 lines of 80 columns.
//
// Where the system has no pseudo-terminal to give (no /dev/pts, its limit is reached), stdout is a
// pipe.

#include <string>

#include "paceline/launcher/output/rank_output.h"

namespace paceline::launcher {

struct RankStdout {
  Pipe ends;
  std::string problem;  // why it is a pipe; empty when it is a terminal
};

// Error(kSystem) where not even a pipe can be made.
RankStdout make_rank_stdout();

}  // namespace paceline::launcher
