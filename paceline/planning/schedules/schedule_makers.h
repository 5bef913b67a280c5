#pragma once

// The makers of the named schedules.
//
// Thread safety: pure functions.

#include <span>
#include <string_view>

#include "paceline/planning/schedules/named_schedules.h"

namespace paceline::pipeline {

// The arguments of pipeline_schedule() (named_schedules.h).
struct PipelineScheduleSize {
  int num_ranks = 1;
  int num_micro_batches = 1;
  int stages_per_rank = 1;
};

// The schedules by functions of their own. All of these throw Error(kInvalid) for numbers below 1.
PipelineSchedule gpipe(const PipelineScheduleSize& size);
// Throws Error(kInvalid) for several stages per rank.
PipelineSchedule one_f_one_b(const PipelineScheduleSize& size);
// The micro-batches form max(1, M / ranks) rounds of equal size; throws Error(kInvalid) if they
// cannot.
PipelineSchedule interleaved_one_f_one_b(const PipelineScheduleSize& size);
PipelineSchedule zero_bubble(const PipelineScheduleSize& size);

}  // namespace paceline::pipeline
