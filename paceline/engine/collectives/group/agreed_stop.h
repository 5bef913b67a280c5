#pragma once

// Ends a training on all ranks after the same step, when a signal or a file asks for it: before the
// walltime of a batch job is over, or when the scheduler wants the machine back.
//
//   AgreedStop stop;
//   for (...) {
//     ... one step ...
//     if (stop.requested(*group)) { save(); return kStoppedAsAgreed; }
//   }
//
// A signal reaches the ranks at different moments, or only one of them. So they compare after each
// step what they have seen: an all-reduce of four bytes, right after the step's own collectives,
// where the ranks are together anyway (benchmarks/README.md has its cost).
//
// The signals are caught, not fatal, from construction to destruction, however often they come:
// schedulers send SIGTERM to every process, and the launcher passes on its own as well. What ends a
// rank that does not reach the end of its step is the launcher's or the scheduler's SIGKILL, and
// a second SIGINT (Ctrl-C), which is not caught any more. A SIGINT that is ignored stays so.
//
// Thread safety: none. One object a process, because signals belong to the process.

#include <chrono>
#include <csignal>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

struct AgreedStopOptions {
  std::vector<int> signals = {SIGUSR1, SIGTERM, SIGINT};
  // Its existence is a request too. Rank 0 looks for it, ten times a second at most, and removes it
  // once all have agreed, so that the continued job is not stopped by it again. Empty: none.
  std::string file;
};

class AgreedStop {
 public:
  // Error(kInvalid) when there is another one in this process or a signal cannot be caught.
  explicit AgreedStop(AgreedStopOptions options = {});
  // What the signals did before is restored.
  ~AgreedStop();
  AgreedStop(const AgreedStop&) = delete;
  AgreedStop& operator=(const AgreedStop&) = delete;

  // Collective; after each step. True on every rank after the same step, and from then on. Errors:
  // those of an all-reduce.
  bool requested(ProcessGroup& group);

  // Why: "SIGUSR1", "the file STOP"; empty before requested() has returned true.
  const std::string& reason() const { return reason_; }

 private:
  using Clock = std::chrono::steady_clock;

  std::int32_t seen_here(const ProcessGroup& group);
  bool file_exists();
  void agree(std::int32_t what, const ProcessGroup& group);

  const AgreedStopOptions options_;
  std::vector<std::pair<int, struct sigaction>> former_;
  Clock::time_point next_look_{};
  std::string reason_;
};

}  // namespace paceline
