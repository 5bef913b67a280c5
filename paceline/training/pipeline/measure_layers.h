#pragma once

// Measures what the layers of a model cost on this machine, for split_by_cost(), simulate() and the
// search (planning/schedules).
//
//   const auto layers = measure_layers(*group, {make_stage(0, first), make_stage(1, block), ...},
//                                      {tokens}, [&](const auto& outputs, int) { ... });
//   const auto counts = pipeline::split_by_cost(seconds_of(layers), num_stages);
//   const auto timed = pipeline::simulate(plan, costs_of_stages(layers, counts));
//
// Thread safety: as ProcessGroup.

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

// Collective. Every rank passes `inputs`, a micro-batch, through all layers and back, once and then
// `repeats` times, with whole backward passes and with halves; then it adds up the gradients, as a
// pipeline does. Returns the median of each layer's passes, averaged over all ranks. So the times
// include how much ranks that share a machine slow each other down. `loss` is as in
// Pipeline::step(). Gradients stay as they were; random numbers are drawn. Error(kInvalid) for no
// layers and for fewer than 1 repeat; a layer's own error.
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

// Collective: measures the memory of each layer in one pass of `inputs` forward and back, with the
// loss in the last layer. Returns the largest values of all ranks, on every rank. Requires: ranks
// are processes (TensorMemoryMeter). Gradients stay as they were; random numbers are drawn.
// Error(kInvalid) for no layers; a layer's own error.
std::vector<LayerMemory> measure_layer_memory(ProcessGroup& group,
                                              const std::vector<PipelineStage>& layers,
                                              const PipelineStage::Tensors& inputs,
                                              const Pipeline::Loss& loss);

// Returns results for `count` layers that are all alike except the first and the last. `different`:
// the results for the first layer, for one layer between, if there is any, and for the last layer.
// Requires: 2 or 3 results.
template <class Measured>
std::vector<Measured> of_all_layers(const std::vector<Measured>& different, std::size_t count) {
  std::vector<Measured> all(count, different[different.size() > 2 ? 1 : 0]);
  all.front() = different.front();
  all.back() = different.back();
  return all;
}

// The seconds of each layer: forward, backward, and adding its gradients.
std::vector<double> seconds_of(const std::vector<LayerTimes>& layers);

// The costs of stages with `counts` layers each, one after another. Bytes are set only if `memory`
// is given, and include the copy of its input that each stage but the first receives. The first
// stage computes no gradient of its input, so its second half has the time of both halves.
// Transfers take no time. Requires: `counts` add up to the number of layers.
pipeline::Costs costs_of_stages(const std::vector<LayerTimes>& layers,
                                const std::vector<int>& counts,
                                const std::vector<LayerMemory>& memory = {});

}  // namespace paceline
