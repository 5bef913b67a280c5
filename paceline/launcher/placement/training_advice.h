#pragma once

// The trials of `paceline advise`, and its conclusions from the measurements: the number of ranks
// and threads, and, from the memory that is needed, whether to use replicas, a sharded optimizer, a
// sharded model, or a split model.
//
// Thread safety: pure functions.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/core/system/topology.h"

namespace paceline::launcher {

enum class Division {
  kReplicas,          // every rank has a whole replica
  kShardedOptimizer,  // ZeRO stage 1: Adam's moments are divided among the ranks
  kShardedModel,      // ZeRO stage 3: parameters and gradients as well
  kSplitModel         // each rank computes a part of the model: pipeline or tensor parallel
};

struct TrainingNeeds {
  int num_ranks = 1;                  // number of ranks wanted on this machine
  std::uint64_t parameter_bytes = 0;  // size of all parameters; above 0
  std::uint64_t rank_bytes = 0;       // memory of one rank, as measured; 0: not known
  double step_seconds = 0;            // duration of a step; 0: not known
  std::uint64_t machine_bytes = 0;    // memory that the job may use here
};

struct DivisionAdvice {
  Division division = Division::kReplicas;
  int num_ranks = 1;     // on each machine: as many as were wanted, or fewer
  int num_machines = 1;  // at least this many machines like this one
  std::string reason;    // a sentence with the numbers
};

// Chooses how to divide a training run, from the memory that it needs. The calculation follows ZeRO
// (Rajbhandari et al., 2020) for float32 parameters and Adam: a replica has parameters, gradients
// and two moments; all other memory of a rank (activations, data, libraries) is the same for every
// division, unless the model itself is split.
DivisionAdvice choose_division(const TrainingNeeds& needs);

// The size as text, in powers of 1000: "412.0 MB".
std::string size_text(double bytes);

struct Combination {
  int num_ranks = 1;
  int num_threads = 1;  // of each rank
  bool operator==(const Combination&) const = default;
};

// The combinations to try: one rank on one core; one rank on all cores; and every number of ranks
// that divides the cores evenly or is a power of two, with as many threads as fill the cores. If
// there is a global batch, only numbers of ranks that divide it are tried. If there are more than
// kMaxCombinations, combinations in the middle of the list are left out.
inline constexpr std::size_t kMaxCombinations = 10;
std::vector<Combination> sensible_combinations(const Topology& topology,
                                               std::optional<std::int64_t> global_batch);

// The measurements with one combination.
struct Trial {
  Combination combination;
  std::int64_t num_steps = 0;
  double seconds = 0;                // duration of those steps
  std::int64_t samples = 0;          // in those steps, all ranks together
  double communication_seconds = 0;  // in those steps, mean over the ranks
  std::uint64_t memory_bytes = 0;    // of all ranks, shared pages counted once; 0: not known
  std::int64_t parameter_bytes = 0;  // of the model; 0: not reported
  std::string problem;               // why there is no measurement; empty when there is one
  bool lacked_memory = false;        // the problem was a lack of memory

  int num_cores() const { return combination.num_ranks * combination.num_threads; }
  bool is_measured() const { return problem.empty() && num_steps > 0 && seconds > 0; }
  double samples_per_second() const;
  double step_seconds() const;
  double communication_share() const;
  double samples_per_step() const;
  TrainingNeeds needs(std::uint64_t machine_memory_bytes) const;
};

struct Advice {
  std::optional<Combination> best;  // nullopt when no trial was measured
  // "data parallel, 2 ranks on this machine"; empty when the trials allow no advice.
  std::string answer;
  std::vector<std::string> reasons;  // a sentence each
};

Advice conclude(const std::vector<Trial>& trials, std::uint64_t machine_memory_bytes);

// A table with one line for each trial; the best one is marked.
std::string trial_table(const std::vector<Trial>& trials, const Advice& advice);

}  // namespace paceline::launcher
