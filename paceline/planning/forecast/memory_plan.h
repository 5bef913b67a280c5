#pragma once

// The memory that a way to divide a job takes, before anything runs: of a rank of each stage, and
// of a host.
//
// A rank has P parameters: those of its stage, and its part of each layer. With D replicas, in the
// stages of ZeRO (Rajbhandari et al., 2020; training/parallel/fully_shard.h), gradients and
// optimizer state are divided by D from stage 2 and 1 on (a pipeline's gradients are whole until
// its step ends), and in stage 3 the parameters exist once a host. Activations are those that the
// profile measured, times the samples that are under way at once: one micro-batch without a
// pipeline, what the schedule keeps with one. In a backward pass gradients take the place of
// activations, layer by layer; in the first one of several they add up. A pipeline's stage makes
// all its gradients of a micro-batch before it adds them to those of others.
//
// Thread safety: pure functions.

#include <vector>

#include "paceline/planning/forecast/way.h"

namespace paceline::planning {

// Bytes.
struct RankMemory {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double activations = 0;  // at the peak, beyond the gradients; with units of divided gradients
                           // under way
  double working = 0;      // what a pass needs for a moment, units of divided gradients included
  double process = 0;      // beside model and data

  double all() const {
    return parameters + gradients + optimizer + activations + working + process;
  }
};

struct MemoryPlan {
  RankMemory rank;       // of the one that needs most
  double host_copy = 0;  // of parameters and libraries, once for all ranks of that host
  double host = 0;       // all of the host that needs most

  bool fits(const Machine& machine) const {
    return machine.memory_bytes <= 0 || host <= machine.memory_bytes;
  }
};

// Whether the rank has the first layer, so that tied weights (the last layer's are the first one's)
// are not stored twice.
bool has_first_layer(const RankLayers& stages);
// Elements of parameters that a rank of these stages has.
double parameters_of_rank(const JobProfile& profile, const Way& way, const RankLayers& stages);
// What a rank of the stage keeps of one sample from the forward to the backward pass, and from the
// first half of this to the second: the first stage has no gradients that wait in between.
double activations_of_stage(const JobProfile& profile, const Way& way, LayerRange stage);
double deferred_of_stage(const JobProfile& profile, const Way& way, LayerRange stage);

// Activations and gradients together at the peak of one forward and backward pass of the stage.
double peak_of_pass(const JobProfile& profile, const Way& way, LayerRange stage, double samples);

// `ranks`: of pp; `kept`: bytes of activations at the peak of each.
MemoryPlan plan_memory(const JobProfile& profile, const Machine& machine, const Way& way,
                       double samples_at_once, const std::vector<RankLayers>& ranks,
                       const std::vector<double>& kept);

}  // namespace paceline::planning
