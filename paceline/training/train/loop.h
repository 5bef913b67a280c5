#pragma once

// The training loop, in one page: epochs of steps, each one the gradients of every batch of the
// step (one, unless a global batch comes in parts) and the optimizer's step, timed by phase.
// Everything else (logging, evaluation, checkpoints) hangs on its hooks.

#include <functional>

#include "paceline/engine/telemetry/phase_times.h"
#include "paceline/training/data/data_loader.h"
#include "paceline/training/optim/optimizer.h"
#include "paceline/training/train/step_gradients.h"
#include "paceline/training/train/training_state.h"

namespace paceline::train {

struct LoopOptions {
  std::int64_t epochs = 1;
  std::int64_t max_steps = 0;  // ends after this many steps in all; 0: no limit
};

struct StepReport {
  const TrainingState& state;  // after the step
  double loss;                 // mean over the samples, or over what counts, of all ranks
  std::int64_t samples;        // of this rank
};

struct LoopHooks {
  // What backward passes begin with instead of the loss: GradScaler::scale().
  ScaleLoss scale_loss;
  // Instead of the optimizer's step(), with the gradients of the whole step: clipping before it,
  // GradScaler::step(), a schedule or an average of the weights after it.
  std::function<void()> take_step;
  std::function<void(const StepReport& report)> after_step;
  // Asked after after_step: true ends the loop here. All ranks must answer alike (AgreedStop).
  std::function<bool()> stop_requested;
  std::function<void(const TrainingState& state)> after_epoch;  // state.epoch is the next one
};

enum class LoopEnd {
  kDone,
  kStopped,  // stop_requested() said so; `state` is where to go on
};

// Trains from `state` on, which may be in the middle of an epoch, and keeps it up to date. Adds to
// `times` what each phase took. All ranks take the same number of steps. A stop that is requested
// at the last step of all ends as kDone. Error(kInvalid) when a run would go on with another number
// of logical shards.
LoopEnd run_loop(const LoopOptions& options, TrainingState& state, data::DataLoader& loader,
                 StepGradients& gradients, optim::Optimizer& optimizer, PhaseTimes& times,
                 const LoopHooks& hooks);

}  // namespace paceline::train
