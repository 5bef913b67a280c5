#pragma once

// What a training run may have beside its module and optimizer. All that is attached to a
// Checkpointer goes into its checkpoints and comes back.
//
// Ownership: the program's; they outlive the Checkpointer.

#include "paceline/optim/exponential_moving_average.h"
#include "paceline/optim/grad_scaler.h"
#include "paceline/optim/schedule.h"
#include "paceline/parallel/post_local_sgd.h"
#include "paceline/parallel/reducer.h"

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
