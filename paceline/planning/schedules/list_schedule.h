#pragma once

// A plan made by list scheduling: whichever rank can begin first takes, of what is ready for it,
// what comes first by a policy. The search (search.h) tries many policies.
//
// Thread safety: a pure function.

#include <optional>
#include <vector>

#include "paceline/planning/schedules/simulate.h"

namespace paceline::pipeline {

// The most bytes that each rank may keep between actions; none: any number.
struct MemoryLimits {
  std::vector<double> bytes_of_rank = {};
};

enum class StageOrder {
  kDeepFirst,   // of a rank's stages the last one, so that micro-batches leave early
  kBroadFirst,  // the first one
  kByRound,     // in rounds of as many micro-batches as there are ranks, as in interleaved 1F1B
};

struct ListPolicy {
  // Micro-batches from this one on have backward passes in two halves; those before, whole ones.
  int split_from = 0;
  // How many micro-batches a rank has under way at most (each of its stages counts), beyond those
  // that 1F1B has; none: as many as memory allows.
  std::optional<int> more_in_flight = {};
  // A weight's gradient may begin if what has precedence then waits at most this share of it.
  double weight_slack = 0;
  bool forward_first = false;  // before a backward pass that is ready as well
  StageOrder order = StageOrder::kDeepFirst;
};

// Nothing when the policy's choices end where no rank can go on within the limits.
std::optional<Plan> list_schedule(const std::vector<int>& rank_of_stage, int num_micro_batches,
                                  const Costs& costs, const MemoryLimits& limits,
                                  const ListPolicy& policy);

}  // namespace paceline::pipeline
