#pragma once

// What a training run may have beside its module and optimizer. All that is attached to a
// Checkpointer goes into its checkpoints and comes back.
//
// Ownership: the program's; they outlive the Checkpointer.

#include "paceline/training/optim/exponential_moving_average.h"
#include "paceline/training/optim/grad_scaler.h"
#include "paceline/training/optim/schedule.h"
#include "paceline/training/parallel/post_local_sgd.h"
#include "paceline/training/parallel/reducer.h"

namespace paceline::train {

// Null: the run has none.
struct RunParts {
  optim::Schedule* schedule = nullptr;
  optim::GradScaler* scaler = nullptr;
  optim::ExponentialMovingAverage* average = nullptr;
  Reducer* reducer = nullptr;  // whose communication hook, if any, keeps something between passes
  PeriodicAverager* averager = nullptr;
};

}  // namespace paceline::train
