#pragma once

// Runs a group's ranks as threads of the test. A watchdog ends the test program when they hang.

#include <functional>
#include <optional>
#include <vector>

#include "tests/harness/ranks_options.h"

namespace paceline::harness {

using RankBody = std::function<void(ProcessGroup& group)>;

// The exception that a rank threw; empty if it threw nothing.
struct RankResult {
  std::optional<Error> error;
};

// Calls `body` on `world_size` threads, each with its rank's group.
std::vector<RankResult> run_ranks(int world_size, const RankBody& body,
                                  const RanksOptions& options = {});

// Like run_ranks(), but fails the test if a rank throws.
void run_ranks_ok(int world_size, const RankBody& body, const RanksOptions& options = {});

}  // namespace paceline::harness
