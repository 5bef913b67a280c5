#pragma once

// The state that a Checkpointer has restored, and the parts of a run that TrainingRun passes to it.
//
// Thread safety: values.

#include <vector>

#include "paceline/training/optim/exponential_moving_average.h"
#include "paceline/training/optim/grad_scaler.h"
#include "paceline/training/optim/lr_scheduler.h"
#include "paceline/training/parallel/communication_hook.h"
#include "paceline/training/parallel/reducer/reducer.h"
#include "paceline/training/train/checkpoints/attached_state.h"
#include "paceline/training/train/training_state.h"

namespace paceline::train {

struct RestoredRun {
  TrainingState state;
  bool from_memory = false;
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
