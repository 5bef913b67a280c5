#pragma once

// What the layers of a model cost, for the profile that the planner predicts from
// (planning/forecast/job_profile.h): times of measure_layers() (training/pipeline/measure_layers.h)
// with two numbers of samples, and the memory that each layer keeps.
//
// Thread safety: that of measure_layers().

#include <cstdint>
#include <functional>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/planning/forecast/job_profile.h"
#include "paceline/training/pipeline/pipeline.h"

namespace paceline::train {

struct LayerChain {
  std::vector<PipelineStage> layers;  // each takes what the one before it returns
  // The first layer's input for so many samples.
  std::function<at::Tensor(std::int64_t samples)> make_input;
  Pipeline::Loss loss;  // of the last layer's output
};

// Collective: passes with `samples` and with a quarter of them. Of each layer the times,
// parameters, activations and output. Error(kInvalid) for less than one sample; those of
// measure_layers().
std::vector<planning::LayerProfile> profile_layers(ProcessGroup& group, const LayerChain& chain,
                                                   std::int64_t samples);

// `whole` without what `part` takes: of layers that cannot run alone. No number falls below 0.
planning::LayerProfile without(planning::LayerProfile whole, const planning::LayerProfile& part);

// Seconds of `body`, the least of some calls after one that does not count.
double least_seconds(const std::function<void()>& body);

}  // namespace paceline::train
