#pragma once

// Passes what is typed on a terminal on to rank 0. A rank is not in the terminal's foreground
// process group and would be stopped if it read there itself. While this process is in the
// background the terminal is left alone; nothing tells a running job that it came to the foreground
// again, so that has to be looked for.

#include <string>

#include "paceline/engine/core/fd.h"

namespace paceline::launcher {

class StdinRelay {
 public:
  // `terminal` is not owned; `to_rank` is the non-blocking writing end of rank 0's stdin.
  StdinRelay(int terminal, Fd to_rank) : terminal_(terminal), to_rank_(std::move(to_rank)) {}

  // What to poll now: the descriptor and its events, or -1.
  int poll_fd() const;
  short poll_events() const;
  // It would read, but for this process being in the background: poll_fd() is to be asked again
  // soon.
  bool waits_for_foreground() const;
  // Call when poll_fd() is ready.
  void pass_on();

 private:
  bool in_foreground() const;
  void close() { to_rank_.reset(); }

  int terminal_;
  Fd to_rank_;
  std::string pending_;
};

}  // namespace paceline::launcher
