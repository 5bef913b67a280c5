#pragma once

// Times of what is done several times.

#include <chrono>

namespace paceline::train {

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace paceline::train
