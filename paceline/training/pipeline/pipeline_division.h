#pragma once

// Cuts a model's layers into the stages of a pipeline, and chooses the schedule, by the times and
// the memory that the layers need on this machine.
//
//   const PipelineDivision division(world, {make_stage(0, first), make_stage(1, block), ...},
//                                   {tokens}, loss, {.num_ranks = 4, .num_micro_batches = 8});
//   Pipeline pipeline(group, division.schedule(), stages);  // division.layers()[s] layers in s
//
// The schedule is the named one (named_schedules.h) or, for "search", the one with the shortest
// step over all layouts of stages on ranks (one stage per rank, several, or a V), each with its own
// cut of the layers. A searched schedule is never slower than the best named schedule that fits
// into memory; among schedules within a percent of the fastest, which measurements cannot
// distinguish, it is the one that needs the least memory. The same measurements give the same
// schedule on every rank and machine.
//
// Thread safety: the object is a value; its collectives are as those of ProcessGroup.

#include <memory>
#include <string>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/pipeline/pipeline.h"

namespace paceline {

struct PipelineDivisionOptions {
  int num_ranks = 1;  // of the pipeline
  int num_micro_batches = 1;
  // The number of layers of the model; 0: as many as are measured. A model whose layers are equal,
  // except the first and the last, passes its first layer, one in the middle and the last one.
  int num_layers = 0;
  std::string schedule = "1f1b";  // one of pipeline_schedule_names(), or "search"
  int stages_per_rank = 0;        // 0: 1, or the number that the search chooses
  double max_bytes_per_rank = 0;  // the most activations on a rank, for the search; 0: no limit
};

class PipelineDivision {
 public:
  // Collective over `group`, which may have more ranks than the pipeline. Every rank passes
  // `inputs`, a micro-batch, forward and backward through all `layers`, a few times, with `loss` as
  // in Pipeline::step(). Gradients are left unchanged; random numbers are drawn. Requires: ranks
  // are processes. Error(kInvalid) for no layers, for fewer layers than stages, for numbers that do
  // not fit together, for an unknown name, and if no schedule fits into memory; a layer's own
  // error.
  PipelineDivision(GroupRef group, const std::vector<PipelineStage>& layers,
                   const PipelineStage::Tensors& inputs, const Pipeline::Loss& loss,
                   const PipelineDivisionOptions& options);

  const PipelineSchedule& schedule() const;
  // The number of consecutive layers of each stage.
  const std::vector<int>& layers() const;

  // The planned step: its duration, the share of the ranks' time in which they wait (0 to 1), and
  // the activations of the rank that has the most.
  double seconds() const;
  double bubble_share() const;
  double peak_bytes() const;
  // After a search: "1f1b would take 12.3 ms", for the best named schedule that fits into memory.
  // Empty without a search, and if none fits.
  std::string beside_best_named() const;

  // Collective over the pipeline's ranks. Returns, on every rank, the planned step and `measured`
  // below it on the same scale: as a picture (SVG) with a row for each rank, or as a trace for
  // Perfetto (https://ui.perfetto.dev) and chrome://tracing. Each rank's times count from its own
  // call of step(). Error(kInvalid) for a step without actions.
  std::string picture(GroupRef group, const PipelineStep& measured, const std::string& title) const;
  std::string trace(GroupRef group, const PipelineStep& measured, const std::string& title) const;

 private:
  struct Plan;
  std::shared_ptr<const Plan> plan_;  // shared by copies of this value
};

}  // namespace paceline
