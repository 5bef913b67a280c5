#pragma once

// What this process takes of the machine's memory: its proportional set size, in which shared pages
// are divided among their users.

#include <fstream>
#include <string>

#include "paceline/core/check.h"

namespace paceline::benchmarks {

inline double own_pss_mb() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string word; rollup >> word;) {
    double kilobytes = 0;
    if (word == "Pss:" && rollup >> kilobytes) return kilobytes / 1024;
  }
  fail(ErrorCode::kSystem, "/proc/self/smaps_rollup has no line Pss:");
}

}  // namespace paceline::benchmarks
