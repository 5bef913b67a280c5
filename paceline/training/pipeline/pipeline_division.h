#pragma once

// Cuts the layers of a model into the stages of a pipeline, and chooses the schedule, according to
// the time and the memory that the layers take on this machine.
//
//   const PipelineDivision division(world, {make_stage(0, first), make_stage(1, block), ...},
//                                   {tokens}, loss, {.num_ranks = 4, .num_micro_batches = 8});
//   Pipeline pipeline(group, division.schedule(), stages);  // stage s: layers()[s] layers
//
// The schedule is the named one (named_schedules.h) or, for "search", the fastest in any layout of
// stages on ranks (one stage per rank, several, or a V); the layers are cut for each layout. A
// searched schedule is never slower than the best named one that fits into memory. Measurements
// cannot distinguish schedules within a percent of the fastest: the search chooses the layout with
// the fewest stages among them and, within a layout, the schedule that needs the least memory. The
// same measurements give the same schedule on every rank and machine.
//
// Thread safety: the object is a value; its collectives follow the rules of ProcessGroup.

#include <memory>
#include <string>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/pipeline/pipeline.h"

namespace paceline {

struct PipelineDivisionOptions {
  int num_ranks = 1;  // the ranks of the pipeline
  int num_micro_batches = 1;
  // The number of layers of the model; 0: the constructor gets all of them. If all layers but the
  // first and the last are equal, the constructor may get three: the first layer, one from the
  // middle, and the last.
  int num_layers = 0;
  std::string schedule = "1f1b";  // one of pipeline_schedule_names(), or "search"
  int stages_per_rank = 0;        // 0: the search chooses the number; a named schedule has 1
  double max_bytes_per_rank = 0;  // the search's limit for activations on a rank; 0: no limit
};

class PipelineDivision {
 public:
  // Collective over `group`, which may have more ranks than the pipeline. Every rank measures all
  // `layers`: it passes `inputs`, one micro-batch, through them a few times, forward and backward,
  // with `loss` as in Pipeline::step(). This leaves gradients unchanged, but draws random numbers.
  // Requires: ranks are processes. Error(kInvalid) if there are no layers or fewer layers than
  // stages, if the options contradict each other or name an unknown schedule, and if no schedule
  // fits into memory. Errors of a layer are passed on.
  PipelineDivision(GroupRef group, const std::vector<PipelineStage>& layers,
                   const PipelineStage::Tensors& inputs, const Pipeline::Loss& loss,
                   const PipelineDivisionOptions& options);

  const PipelineSchedule& schedule() const;
  // The number of consecutive layers of each stage.
  const std::vector<int>& layers() const;

  // The planned step: its duration, the share of this time in which ranks wait (0 to 1, the mean of
  // all ranks), and the bytes of activations on the rank with the most.
  double seconds() const;
  double bubble_share() const;
  double peak_bytes() const;
  // After a search, returns the time of the best named schedule that fits into memory, in the form
  // "1f1b would take 12.3 ms". Returns "" without a search, and if no named schedule fits.
  std::string best_named_schedule() const;

  // Collective over the pipeline's ranks. Returns, on every rank, the planned step and, below it on
  // the same scale, the step `measured`: picture() as an SVG image with a row for each rank,
  // trace() for Perfetto (https://ui.perfetto.dev) and chrome://tracing. The times of each rank
  // begin at its own call of step(). picture(): Error(kInvalid) if neither step takes any time.
  std::string picture(GroupRef group, const PipelineStep& measured, const std::string& title) const;
  std::string trace(GroupRef group, const PipelineStep& measured, const std::string& title) const;

 private:
  struct Plan;
  std::shared_ptr<const Plan> plan_;  // shared by copies of this value
};

}  // namespace paceline
