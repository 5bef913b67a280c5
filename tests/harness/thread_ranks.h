#pragma once

// Runs a group's ranks as threads of the test. A watchdog ends the test program when they hang.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "paceline/collectives/group/process_group.h"

namespace paceline::harness {

struct ThreadRanksOptions {
  TransportKind transport = TransportKind::kAuto;
  std::string backend;  // as GroupOptions takes it
  std::chrono::milliseconds group_timeout{20'000};
  std::chrono::milliseconds watchdog{60'000};
  std::string flight_directory;  // where ranks record what they do, and leave it; empty: nowhere
  std::function<void(int rank, GroupOptions& options)> adjust;  // of each rank's group
};

using RankBody = std::function<void(ProcessGroup& group)>;

// What each rank threw; empty: nothing.
struct RankResult {
  std::optional<Error> error;
};

// Calls `body` on `world_size` threads, each with its rank's group.
std::vector<RankResult> run_ranks(int world_size, const RankBody& body,
                                  const ThreadRanksOptions& options = {});

// As run_ranks, and fails the test when a rank throws.
void run_ranks_ok(int world_size, const RankBody& body, const ThreadRanksOptions& options = {});

}  // namespace paceline::harness
