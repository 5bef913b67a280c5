#pragma once

// What the layers of a model cost, measured on this machine, for split_by_cost(), simulate() and
// the search (planning/schedules).
//
//   const auto layers = measure_layers(*group, {make_stage(0, first), make_stage(1, block), ...},
//                                      {tokens}, [&](const auto& outputs, int) { ... });
//   const auto counts = pipeline::split_by_cost(seconds_of(layers), num_stages);
//   const auto timed = pipeline::simulate(plan, costs_of_stages(layers, counts));
//
// Thread safety: that of ProcessGroup.

#include <cstddef>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/planning/schedules/simulate.h"
#include "paceline/training/pipeline/pipeline.h"

namespace paceline {

// Seconds of a layer with one micro-batch.
struct LayerTimes {
  double forward_s = 0;
  double backward_s = 0;                       // of the whole backward pass
  double input_half_s = 0, weight_half_s = 0;  // of its two halves (backward_pass.h)
  double add_s = 0;  // of adding its gradients to those of other micro-batches
};

// Collective. Every rank passes `inputs`, a micro-batch, through all layers and back, once and
// `repeats` times more, with whole backward passes and with halves; then it adds the gradients up,
// as a pipeline does. Returns the median of each layer's passes, averaged over all ranks. So the
// times include how much ranks that share a machine slow each other down. `loss` is
// that of Pipeline::step(). Gradients stay as they were; random numbers are drawn. Error(kInvalid)
// for no layers and for fewer than 1 repeat; a layer's own error.
std::vector<LayerTimes> measure_layers(ProcessGroup& group,
                                       const std::vector<PipelineStage>& layers,
                                       const PipelineStage::Tensors& inputs,
                                       const Pipeline::Loss& loss, int repeats = 3);

// Bytes of a layer with one micro-batch.
struct LayerMemory {
  double activation_bytes = 0;  // kept from the forward pass to the backward pass
  double deferred_bytes = 0;    // kept from the first half of the backward pass to the second
  double output_bytes = 0;
};

// Collective: the memory of each layer, with the loss in the last one, in one pass of `inputs`
// forwards and back; the largest of all ranks, the same on all. Requires: ranks are processes
// (TensorMemoryMeter). Gradients stay as they were; random numbers are drawn. Error(kInvalid) for
// no layers; a layer's own error.
std::vector<LayerMemory> measure_layer_memory(ProcessGroup& group,
                                              const std::vector<PipelineStage>& layers,
                                              const PipelineStage::Tensors& inputs,
                                              const Pipeline::Loss& loss);

// Results for `count` layers of which all but the first and the last are alike, from those of the
// first one, one between, if there are any, and the last one. Requires: 2 or 3 results.
template <class Measured>
std::vector<Measured> of_all_layers(const std::vector<Measured>& different, std::size_t count) {
  std::vector<Measured> all(count, different[different.size() > 2 ? 1 : 0]);
  all.front() = different.front();
  all.back() = different.back();
  return all;
}

// The seconds of each layer: forward, backward, and adding its gradients.
std::vector<double> seconds_of(const std::vector<LayerTimes>& layers);

// The costs of stages with so many layers each, one after the other; bytes only where `memory` is
// given, with the copy of its input that each stage but the first receives. The first stage makes
// no gradient of its input: its second half has both. Transfers take no time. Requires: `counts`
// add up to the number of layers.
pipeline::Costs costs_of_stages(const std::vector<LayerTimes>& layers,
                                const std::vector<int>& counts,
                                const std::vector<LayerMemory>& memory = {});

}  // namespace paceline
