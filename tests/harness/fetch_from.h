#pragma once

// Reads the addresses of the ranks of a test's group from the store that these ranks share. The key
// of an address is the rank's number.

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
