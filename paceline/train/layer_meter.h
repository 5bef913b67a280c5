#pragma once

// What a layer of a model costs, measured alone: for the profile that the planner predicts from
// (planning/job_profile.h).
//
// Thread safety: none. Takes a second or so a layer.

#include <cstdint>
#include <functional>
#include <string>

#include <torch/nn/module.h>

#include "paceline/planning/job_profile.h"

namespace paceline::train {

struct MeasuredLayer {
  std::string name;
  torch::nn::Module& module;  // whose gradients are dropped
  // The layer's input for so many samples.
  std::function<at::Tensor(std::int64_t samples)> make_input;
  // Its output; of the last layer the loss.
  std::function<at::Tensor(const at::Tensor& input)> forward;
};

// Passes with `samples` and with a quarter of them, each several times; the fastest count,
// because the shares of layers matter and not what else the machine did. The name, times,
// parameters, activations and output are filled in. Error(kInvalid) for less than one sample, and
// those of the layer.
planning::LayerProfile measure_layer(const MeasuredLayer& layer, std::int64_t samples);

// `whole` without what `part` takes: of layers that cannot run alone. No number falls below 0.
planning::LayerProfile without(planning::LayerProfile whole, const planning::LayerProfile& part);

// Seconds of `body`, the least of some calls after one that does not count.
double least_seconds(const std::function<void()>& body);

}  // namespace paceline::train
