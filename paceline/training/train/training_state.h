#pragma once

// The progress of a training run. A plain value; a checkpoint contains it in addition to the
// tensors.

#include <cstdint>
#include <string>
#include <vector>

#include "paceline/training/optim/exponential_moving_average.h"
#include "paceline/training/optim/grad_scaler.h"
#include "paceline/training/optim/lr_scheduler.h"
#include "paceline/training/parallel/communication_hook.h"
#include "paceline/training/parallel/reducer/reducer.h"
#include "paceline/training/train/checkpoints/attached_state.h"

namespace paceline::train {

struct TrainingState {
  std::int64_t epoch = 0;     // the current epoch, from 0
  std::int64_t step = 0;      // optimizer steps taken since the beginning
  std::int64_t consumed = 0;  // samples of the current epoch that all ranks together have consumed
  std::uint64_t seed = 0;     // seed of the sampler and the transforms
  std::string data;           // the program's description of the data set; empty: unknown
  std::int64_t logical_shards = 0;  // logical shards of each step; 0: no logical shards
  std::int64_t num_threads = 0;     // LibTorch's threads on every rank, if there are logical shards

  bool operator==(const TrainingState&) const = default;
};

// The parts that a training run may have in addition to its module and optimizer; null: the run
// does not have this part. Parts that are attached to a Checkpointer are saved in its checkpoints
// and restored from them.
//
// Ownership: the program owns the parts; they must outlive the Checkpointer.
struct RunParts {
  optim::LRScheduler* schedule = nullptr;
  optim::GradScaler* scaler = nullptr;
  optim::ExponentialMovingAverage* average = nullptr;
  Reducer* reducer = nullptr;  // its communication hook, if any, may keep tensors between passes
  std::vector<AttachedState> states = {};  // other parts, in the order in which they are restored
};

}  // namespace paceline::train
