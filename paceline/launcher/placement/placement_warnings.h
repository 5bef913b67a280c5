#pragma once

// Warnings about settings that make a job slower than necessary, each with its price and its cure.
// The settings themselves are not changed.
//
// Thread safety: pure functions.

#include <optional>
#include <string>
#include <vector>

#include "paceline/launcher/messages/running_jobs.h"
#include "paceline/launcher/placement/placement.h"
#include "paceline/launcher/process/process.h"

namespace paceline::launcher {

struct Warning {
  std::string what;   // "OMP_NUM_THREADS=1 is inherited"
  std::string price;  // "3 of every rank's 4 cores stay idle"
  std::string cure;   // "unset it; if it is intended, give --threads-per-rank 1 (4 would use ...)"
  bool operator==(const Warning&) const = default;
};

// The text "what: price; cure".
std::string to_text(const Warning& warning);

// The number in OMP_NUM_THREADS; nullopt if the variable is not set or is not a number.
std::optional<int> inherited_threads(const Environment& inherited);

struct PlacementFacts {
  const Topology& topology;
  // Its threads_per_rank is --threads-per-rank or, without that option, OMP_NUM_THREADS.
  const PlacementRequest& request;
  const Placement& placement;
  const Environment& inherited;
  bool threads_by_option = false;  // --threads-per-rank was given
  std::vector<RunningJob> other_jobs;
};

// The warnings for a job that is about to start.
std::vector<Warning> placement_warnings(const PlacementFacts& facts);

// Warnings about variables that limit the number of threads of every rank, or pin the threads. They
// depend on the environment alone; placement_warnings() includes them.
std::vector<Warning> variable_warnings(const Environment& inherited);

}  // namespace paceline::launcher
