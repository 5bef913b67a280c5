#pragma once

// Gets the addresses of ranks that form a group in a test from a store that they share, in which
// the key of each address is the rank's number.

#include <chrono>
#include <string>
#include <vector>

#include "paceline/engine/store/store.h"

namespace paceline::harness {

inline std::vector<std::string> fetch_from(Store& store, const std::vector<int>& ranks,
                                           std::chrono::milliseconds wait) {
  std::vector<std::string> keys;
  for (const int rank : ranks) keys.push_back(std::to_string(rank));
  return store.multi_get(keys, wait);
}

}  // namespace paceline::harness
