#pragma once

// How a training should be divided when memory decides: replicas, a sharded optimizer, a sharded
// model, or a model that is split. Arithmetic on what was measured, after the accounts of ZeRO
// (Rajbhandari et al., 2020) for float32 parameters and Adam: a replica holds parameters, gradients
// and two moments; what else a rank was seen to use (activations, data, libraries) stays whole in
// every rank, unless the model itself is split.
//
// Pure.

#include <cstdint>
#include <string>

namespace paceline::launcher {

enum class Division {
  kReplicas,          // every rank holds everything
  kShardedOptimizer,  // stage 1: Adam's moments are divided among the ranks
  kShardedModel,      // stage 3: also parameters and gradients
  kSplitModel         // each rank computes a part of the model: pipeline or tensor parallel
};

struct TrainingNeeds {
  int num_ranks = 1;                  // that are wanted on this machine
  std::uint64_t parameter_bytes = 0;  // above 0
  std::uint64_t rank_bytes = 0;       // memory of one rank, as measured; 0: not known
  double step_seconds = 0;            // 0: not known
  std::uint64_t machine_bytes = 0;    // what the job may use here
};

struct DivisionAdvice {
  Division division = Division::kReplicas;
  int num_ranks = 1;     // on each machine: those that were wanted, or fewer
  int num_machines = 1;  // like this one, at least
  std::string reason;    // a sentence with the numbers
};

DivisionAdvice choose_division(const TrainingNeeds& needs);

// "412.0 MB", powers of 1000.
std::string size_text(double bytes);

}  // namespace paceline::launcher
