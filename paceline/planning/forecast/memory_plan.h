#pragma once

// Predicts how much memory a job needs on a rank and on a host, if it is divided in a given way,
// before anything runs.
//
// A rank has its part of the parameters of its stages. With D replicas and the stages of
// ZeRO (Rajbhandari et al., 2020; training/parallel/fully_shard.h), the optimizer state is divided
// by D from stage 1 on and the gradients from stage 2 on (a pipeline's gradients are whole until
// its step ends), and in stage 3 each host has one copy of the parameters. Activations take the
// bytes per sample that the profile measured, times the samples under way at once: one micro-batch
// without a pipeline, or as many as the pipeline's schedule keeps. If a step has one micro-batch,
// gradients replace activations during the backward pass, layer by layer. If it has several, the
// gradients of the first ones still exist in the later passes, so all gradients count in addition
// to all activations. A pipeline's stage makes all its gradients of a micro-batch before it adds
// them to those of other micro-batches.
//
// Thread safety: pure functions.

#include <vector>

#include "paceline/planning/forecast/way.h"

namespace paceline::planning {

// The memory of a rank in bytes.
struct RankMemory {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double activations = 0;  // at the peak, in addition to the gradients; includes divided gradients
                           // that wait for their exchange
  double working = 0;      // needed temporarily by a pass
  double process = 0;      // of the process without model and data

  double all() const {
    return parameters + gradients + optimizer + activations + working + process;
  }
};

struct MemoryPlan {
  RankMemory rank;       // the rank that needs most
  double host_copy = 0;  // the part of `host` that its ranks share: parameters, libraries
  double host = 0;       // in total on the host that needs most

  bool fits(const Machine& machine) const {
    return machine.memory_bytes <= 0 || host <= machine.memory_bytes;
  }
};

// Whether the rank has the first layer, so that tied weights (the last layer uses those of the
// first) are not stored twice.
bool has_first_layer(const RankLayers& stages);
// The number of parameters that a rank of these stages has.
double parameters_of_rank(const JobProfile& profile, const Way& way, const RankLayers& stages);
// The bytes that a rank of the stage keeps for one sample: activations_of_stage() from the forward
// to the backward pass, deferred_of_stage() from the first half of the backward pass (input
// gradients) to the second (weight gradients). In the first stage the first half computes nothing,
// because nothing needs an input gradient there; so all activations are kept until the second half.
double activations_of_stage(const JobProfile& profile, const Way& way, LayerRange stage);
double deferred_of_stage(const JobProfile& profile, const Way& way, LayerRange stage);

// The bytes of activations and gradients at the peak of one forward and backward pass of the stage.
double peak_of_pass(const JobProfile& profile, const Way& way, LayerRange stage, double samples);

// `ranks`: the layers of each pipeline rank; `kept`: each rank's bytes of activations at its peak.
MemoryPlan plan_memory(const JobProfile& profile, const Machine& machine, const Way& way,
                       double samples_at_once, const std::vector<RankLayers>& ranks,
                       const std::vector<double>& kept);

}  // namespace paceline::planning
