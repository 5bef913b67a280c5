#pragma once

// The highest memory use of a process.

#include <cstdint>
#include <fstream>
#include <string>

namespace paceline::testing {

// The highest memory use of this process since the last call, in bytes.
inline std::uint64_t peak_memory() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line) && !line.starts_with("VmHWM:")) {
  }
  std::ofstream("/proc/self/clear_refs") << "5";  // restarts the measurement
  return std::stoull(line.substr(line.find_first_of("0123456789"))) * 1024;
}

}  // namespace paceline::testing
