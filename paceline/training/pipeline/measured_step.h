#pragma once

// A measured step of a pipeline, in the form of a simulated one.
//
// Thread safety: same as ProcessGroup.

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/planning/schedules/simulate.h"
#include "paceline/training/pipeline/pipeline.h"

namespace paceline {

// Collective: returns the actions of all ranks in a step, on every rank, as one schedule that can
// be drawn (planning/schedules/picture.h). Each rank's times are relative to its own call of
// step().
pipeline::TimedSchedule measured(GroupRef group, const PipelineStep& step);

}  // namespace paceline
