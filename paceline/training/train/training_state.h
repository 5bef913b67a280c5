#pragma once

// Where a training run stands. A value; what a checkpoint keeps beside the tensors.

#include <cstdint>
#include <string>

#include "paceline/training/optim/exponential_moving_average.h"
#include "paceline/training/optim/grad_scaler.h"
#include "paceline/training/optim/lr_schedules.h"
#include "paceline/training/parallel/communication_hook.h"
#include "paceline/training/parallel/reducer/reducer.h"

namespace paceline::train {

struct TrainingState {
  std::int64_t epoch = 0;     // the epoch under way, from 0
  std::int64_t step = 0;      // optimizer steps taken since the beginning
  std::int64_t consumed = 0;  // samples of the current epoch that all ranks together have consumed
  std::uint64_t seed = 0;     // of the sampler and the transforms
  std::string data;           // which data set, in the program's words; empty: not told
  std::int64_t logical_shards = 0;  // of each step; 0: none
  std::int64_t num_threads = 0;     // LibTorch's on every rank, where there are logical shards

  bool operator==(const TrainingState&) const = default;
};

// What a training run may have beside its module and optimizer. All that is attached to a
// Checkpointer goes into its checkpoints and comes back.
//
// Ownership: the program's; they outlive the Checkpointer.

// Null: the run has none.
struct RunParts {
  optim::Schedule* schedule = nullptr;
  optim::GradScaler* scaler = nullptr;
  optim::ExponentialMovingAverage* average = nullptr;
  Reducer* reducer = nullptr;  // whose communication hook, if any, keeps something between passes
  PeriodicAverager* averager = nullptr;
};

}  // namespace paceline::train
