#pragma once

// What `paceline advise` tries, and what it concludes from what it measured.
//
// Pure.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/core/topology.h"
#include "paceline/launcher/placement/division.h"

namespace paceline::launcher {

struct Combination {
  int num_ranks = 1;
  int num_threads = 1;  // of each rank
  bool operator==(const Combination&) const = default;
};

// One core, one rank with all cores, and every number of ranks that divides the cores evenly or is
// a power of two, with as many threads as fill the cores. With a global batch only numbers of ranks
// that divide it. At most kMostCombinations; the extremes are kept.
inline constexpr std::size_t kMostCombinations = 10;
std::vector<Combination> sensible_combinations(const Topology& topology,
                                               std::optional<std::int64_t> global_batch);

// What was measured with one combination.
struct Trial {
  Combination combination;
  std::int64_t num_steps = 0;
  double seconds = 0;                // of those steps
  std::int64_t samples = 0;          // of those steps, all ranks together
  double communication_seconds = 0;  // of those steps, mean over the ranks
  std::uint64_t memory_bytes = 0;    // of all ranks, shared pages counted once; 0: not known
  std::int64_t parameter_bytes = 0;  // of the model; 0: not told
  std::string problem;               // why there is no measurement; empty when there is one
  bool lacked_memory = false;        // and the problem was memory

  int num_cores() const { return combination.num_ranks * combination.num_threads; }
  bool is_measured() const { return problem.empty() && num_steps > 0 && seconds > 0; }
  double samples_per_second() const;
  double step_seconds() const;
  double communication_share() const;
  double samples_per_step() const;
  TrainingNeeds needs(std::uint64_t machine_memory_bytes) const;
};

struct Advice {
  std::optional<Combination> best;  // nothing when no trial was measured
  // "data parallel, 2 ranks on this machine"; empty when nothing can be said.
  std::string answer;
  std::vector<std::string> reasons;  // a sentence each
};

Advice conclude(const std::vector<Trial>& trials, std::uint64_t machine_memory_bytes);

// One line a trial, the best one marked.
std::string trial_table(const std::vector<Trial>& trials, const Advice& advice);

}  // namespace paceline::launcher
