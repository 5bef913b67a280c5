#pragma once

// Lets all ranks end training after the same step when a signal or a file requests a stop, for
// example before the time limit of a batch job, or when the scheduler needs the machine.
//
//   AgreedStop stop;
//   for (...) {
//     ... one step ...
//     if (stop.requested(group)) { save(); return kStoppedAsAgreed; }
//   }
//
// A signal reaches the ranks at different moments, or reaches only one rank. So after each step the
// ranks compare their requests, by an all-reduce of four bytes right after the step's own
// collectives, when the ranks are synchronised anyway.
//
// From construction to destruction the signals are caught and not fatal, however often they arrive:
// schedulers send SIGTERM to every process, and the launcher also passes on the SIGTERM that it
// gets. The exception is a second SIGINT (Ctrl-C) from the same source, the terminal or a process:
// it ends the rank. A rank that does not reach the end of its step is ended by the launcher's or
// the scheduler's SIGKILL. A SIGINT that was ignored before stays ignored.
//
// Thread safety: none. One object per process, because signals belong to the process.

#include <chrono>
#include <csignal>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

class AgreedStop {
 public:
  // `file`: a file whose existence is also a request; empty for none. Rank 0 checks for it at most
  // ten times a second, and removes it once all ranks have agreed, so that it does not stop the
  // continued job as well. Error(kInvalid) if this process already has an AgreedStop, or if a
  // signal cannot be caught.
  explicit AgreedStop(std::string file = {},
                      const std::vector<int>& signals = {SIGUSR1, SIGTERM, SIGINT});
  // Restores the previous handling of the signals.
  ~AgreedStop();
  AgreedStop(const AgreedStop&) = delete;
  AgreedStop& operator=(const AgreedStop&) = delete;

  // Collective; call it after each step. Returns true on every rank after the same step, and from
  // then on. Errors: those of an all-reduce.
  bool requested(GroupRef group);

  // The reason for the stop, such as "SIGUSR1" or "the file STOP"; empty until requested() has
  // returned true.
  const std::string& reason() const { return reason_; }

 private:
  using Clock = std::chrono::steady_clock;

  std::int32_t seen_here(const ProcessGroup& group);
  bool file_exists();
  void agree(std::int32_t what, const ProcessGroup& group);

  const std::string file_;
  std::vector<std::pair<int, struct sigaction>> former_;
  Clock::time_point next_look_{};
  std::string reason_;
};

}  // namespace paceline
