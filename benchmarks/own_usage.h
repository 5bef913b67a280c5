#pragma once

// The memory that this process uses, and the network traffic of its host.

#include <filesystem>
#include <fstream>
#include <string>

#include "paceline/engine/core/check.h"

namespace paceline::benchmarks {

// The proportional set size, in which shared pages are divided among the processes that use them.
inline double own_pss_mb() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string word; rollup >> word;) {
    double kilobytes = 0;
    if (word == "Pss:" && rollup >> kilobytes) return kilobytes / 1024;
  }
  fail(ErrorCode::kSystem, "/proc/self/smaps_rollup has no line Pss:");
}

// The megabytes that this host (its network namespace) has sent to other hosts so far.
inline double sent_mb() {
  double bytes = 0;
  for (const auto& device : std::filesystem::directory_iterator("/sys/class/net")) {
    double sent = 0;
    std::ifstream(device.path() / "statistics/tx_bytes") >> sent;
    if (device.path().filename() != "lo") bytes += sent;
  }
  return bytes / 1e6;
}

}  // namespace paceline::benchmarks
