#pragma once

// The number of open descriptors. Tests compare it before and after, to see that nothing stays
// open.

#include <cstddef>
#include <filesystem>
#include <iterator>

namespace paceline {

inline std::ptrdiff_t num_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                       std::filesystem::directory_iterator());
}

}  // namespace paceline
