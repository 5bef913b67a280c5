#pragma once

// The named schedules of M micro-batches on S stages. Stage s is on rank s % num_ranks.
//
//   gpipe             all forward passes, then all backward passes (Huang et al., 2019); with
//                     several stages per rank, breadth first: a stage processes all its
//                     micro-batches before the rank's next stage begins (Lamy-Poirier, 2023)
//   1f1b              stage s runs min(M, S - s) forward passes, then backward and forward passes
//                     in turn, then the remaining backward passes (PipeDream-Flush; Narayanan et
//                     al., 2021)
//   interleaved-1f1b  1F1B with several stages per rank and a longer warm-up; the micro-batches
//                     form max(1, M / num_ranks) rounds of equal size (Narayanan et al., 2021, in
//                     the form of torch.distributed.pipelining)
//   zero-bubble       backward passes in two halves; rank r delays each weight gradient by r input
//                     gradients, so that the weight gradients fill the bubble at the end: ZB-H1 (Qi
//                     et al., 2023), which torch.distributed.pipelining calls ZB1P; with several
//                     stages per rank, PyTorch's ScheduleInterleavedZeroBubble
//
// In all of them a stage processes its micro-batches in order, in forward and in backward passes,
// so the gradients of each micro-batch can be added to the sum immediately and need not be kept.
//
// Thread safety: pure functions.

#include <span>
#include <string_view>

#include "paceline/planning/schedules/pipeline_schedule.h"

namespace paceline {

// {"gpipe", "1f1b", "interleaved-1f1b", "zero-bubble"}.
std::span<const std::string_view> pipeline_schedule_names();
// Throws Error(kInvalid) for an unknown name, with the known names, and for numbers that the
// schedule does not support.
PipelineSchedule pipeline_schedule(std::string_view name, int num_ranks, int num_micro_batches,
                                   int stages_per_rank = 1);

}  // namespace paceline
