#pragma once

// How a job ended, as one process of its launcher knows it, and the exit code that follows. A
// value.

#include <csignal>
#include <optional>

#include "paceline/engine/core/exit_code.h"

namespace paceline::launcher {

struct JobEnd {
  bool agreed = false;         // all ranks stopped before their work was done, as they had agreed
  std::optional<int> decided;  // the exit code that the coordinator gave to all nodes
  std::optional<int> failed;   // that of a failure here, which the coordinator may not know of
  int stop_signal = 0;         // the first that ended the launcher; 0: none
  bool abandoned = false;      // the supervisor is gone

  // 0, that of the first failure, kStoppedAsAgreed, or 128 + N for signal N.
  int exit_code() const {
    if (agreed) return kStoppedAsAgreed;
    if (decided && stop_signal == 0) return *decided;
    if (failed) return *failed;
    if (stop_signal != 0) return 128 + stop_signal;
    return abandoned ? 128 + SIGKILL : 0;
  }
};

}  // namespace paceline::launcher
