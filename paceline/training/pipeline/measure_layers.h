#pragma once

// Measures how much time and memory the layers of a model need on this machine, for
// split_by_cost(), simulate() and the search (planning/schedules), and collects the times that all
// ranks measured in a step.
//
//   const auto layers = measure_layers(group, {make_stage(0, first), make_stage(1, block), ...},
//                                      {tokens}, [&](const auto& outputs, int) { ... });
//   const auto counts = pipeline::split_by_cost(seconds_of(layers), num_stages);
//   const auto timed = pipeline::simulate(schedule, costs_of_stages(layers, counts));
//
// Thread safety: same as ProcessGroup.

#include <cstddef>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/planning/schedules/simulate.h"
#include "paceline/training/pipeline/pipeline.h"

namespace paceline {

// Seconds of one layer with one micro-batch.
struct LayerTimes {
  double forward_s = 0;
  double backward_s = 0;                       // for the whole backward pass
  double input_half_s = 0, weight_half_s = 0;  // for its two halves (backward_pass.h)
  double add_s = 0;  // for adding its gradients to those of other micro-batches
};

// Collective. Every rank passes `inputs`, a micro-batch, forward and backward through all layers,
// once to warm up and then `repeats` times, with whole backward passes and with halves, and adds up
// the gradients of each pass, as a pipeline does. Returns the median of each layer's passes,
// averaged over all ranks. So the times include how much ranks on one machine slow each other down.
// `loss` is as in Pipeline::step(). Gradients are left unchanged; random numbers are drawn.
// Error(kInvalid) if there are no layers or `repeats` is below 1. Errors of layers are passed on.
std::vector<LayerTimes> measure_layers(GroupRef group, const std::vector<PipelineStage>& layers,
                                       const PipelineStage::Tensors& inputs,
                                       const Pipeline::Loss& loss, int repeats = 3);

// Bytes of one layer with one micro-batch.
struct LayerMemory {
  double activation_bytes = 0;  // kept from the forward pass to the backward pass
  double deferred_bytes = 0;    // kept from the first half of the backward pass to the second
  double output_bytes = 0;
};

// Collective: measures the memory of each layer in one forward and backward pass of `inputs`, with
// the loss in the last layer. Returns the largest values over all ranks, on every rank. Requires:
// ranks are processes (TensorMemoryMeter). Gradients are left unchanged; random numbers are drawn.
// Error(kInvalid) if there are no layers. Errors of layers are passed on.
std::vector<LayerMemory> measure_layer_memory(GroupRef group,
                                              const std::vector<PipelineStage>& layers,
                                              const PipelineStage::Tensors& inputs,
                                              const Pipeline::Loss& loss);

// Returns results for `count` layers; all of them except the first and the last are equal.
// `different`: the results for the first layer, for one of the layers in between if there are any,
// and for the last layer. Requires: 2 or 3 results.
template <class Measured>
std::vector<Measured> of_all_layers(const std::vector<Measured>& different, std::size_t count) {
  std::vector<Measured> all(count, different[different.size() > 2 ? 1 : 0]);
  all.front() = different.front();
  all.back() = different.back();
  return all;
}

// The seconds of each layer: forward, backward, and adding its gradients.
std::vector<double> seconds_of(const std::vector<LayerTimes>& layers);

// The costs of consecutive stages with `counts` layers each. Bytes are set only if `memory` is
// given; they include the copy of its input that each stage except the first receives. The first
// stage computes no gradient of its input, so its second half takes the time of the whole backward
// pass. Transfers take no time. Requires: the sum of `counts` is the number of layers.
pipeline::Costs costs_of_stages(const std::vector<LayerTimes>& layers,
                                const std::vector<int>& counts,
                                const std::vector<LayerMemory>& memory = {});

// Collective: returns the actions of all ranks in a step, on every rank, as one schedule that can
// be drawn (planning/schedules/picture.h). Each rank's times are relative to its own call of
// step().
pipeline::TimedSchedule measured(GroupRef group, const PipelineStep& step);

}  // namespace paceline
