#pragma once

// Ranks as threads, each with its own environment variables.

#include <future>
#include <vector>

#include "paceline/engine/rendezvous/rendezvous.h"

#include "tests/engine/rendezvous/variables_of.h"

namespace paceline {

// Calls `body(rank)` on a thread for each of `ranks`; the futures hold exceptions of `body`.
template <class Body>
std::vector<std::future<void>> start_ranks(const std::vector<int>& ranks, Body body) {
  std::vector<std::future<void>> started;
  for (const int rank : ranks) {
    started.push_back(std::async(std::launch::async, [body, rank] { body(rank); }));
  }
  return started;
}

inline void join(std::vector<std::future<void>> ranks) {
  for (auto& rank : ranks) rank.get();
}

}  // namespace paceline
