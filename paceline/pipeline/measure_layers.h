#pragma once

// What the layers of a model cost, measured on this machine, for split_by_cost(), simulate() and
// search_plan() (schedules/).
//
//   const auto layers = measure_layers(*group, {make_stage(0, first), make_stage(1, block), ...},
//                                      {tokens}, [&](const auto& outputs, int) { ... });
//   const auto counts = pipeline::split_by_cost(seconds_of(layers), num_stages);
//
// Thread safety: that of ProcessGroup.

#include <vector>

#include "paceline/collectives/group/process_group.h"
#include "paceline/pipeline/pipeline.h"
#include "paceline/schedules/simulate.h"

namespace paceline {

// Collective. Every rank passes `inputs`, a micro-batch, through all layers and back, once and
// `repeats` times more, and takes the fastest of each layer's passes; the result is the mean of all
// ranks, the same on all. So the times include what ranks that share a machine take from each
// other. Bytes and transfers are not measured: they are StageCosts' own. `loss` is that of
// Pipeline::step(). Gradients stay as they were; random numbers are drawn. Error(kInvalid) for no
// layers and for fewer than 1 repeat; a layer's own error.
std::vector<pipeline::StageCosts> measure_layers(ProcessGroup& group,
                                                 const std::vector<PipelineStage>& layers,
                                                 const PipelineStage::Tensors& inputs,
                                                 const Pipeline::Loss& loss, int repeats = 3);

// Of one micro-batch.
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

// Forward and backward of each.
std::vector<double> seconds_of(const std::vector<pipeline::StageCosts>& layers);

// Of stages of so many layers each, one after the other; bytes only where `memory` is given, with
// the copy of its input that each stage but the first receives. Requires: as many layers, and
// their memory, as there are.
pipeline::Costs costs_of_stages(const std::vector<pipeline::StageCosts>& layers,
                                const std::vector<int>& counts,
                                const std::vector<LayerMemory>& memory = {});

}  // namespace paceline
