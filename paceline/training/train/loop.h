#pragma once

// The training loop: epochs of steps. A step computes the gradients of every batch of the step (one
// batch, unless a global batch is split into parts; step_gradients.h), usually by backward passes
// (BackwardPasses), and takes the optimizer's step; each phase is timed. Hooks do everything else:
// logging, evaluation, checkpoints. Programs use it through TrainingRun (training_run.h).
//
// Thread safety: none.

#include <cstdint>
#include <functional>
#include <span>

#include <ATen/core/Tensor.h>

#include "paceline/engine/telemetry/phase_times.h"
#include "paceline/training/data/data_loader.h"
#include "paceline/training/optim/optimizer.h"
#include "paceline/training/parallel/reducer/reducer.h"
#include "paceline/training/train/step_gradients.h"
#include "paceline/training/train/training_state.h"

namespace paceline::train {

// Returns samples [begin, begin + count) of a batch, with the weight of the batch.
data::Batch part_of(const data::Batch& batch, std::int64_t begin, std::int64_t count);

// Runs a forward and a backward pass for each batch; `gradients` averages the resulting gradients
// in `.grad`. Ownership: this object refers to `gradients`, which must outlive it.
class BackwardPasses : public StepGradients {
 public:
  // `loss` is a mean over the samples.
  BackwardPasses(LossFunction loss, Reducer& gradients);
  BackwardPasses(CountedLoss loss, Reducer& gradients);

  bool weighs_steps() const override { return count_ != nullptr; }
  void weigh(std::span<data::Batch> step) override;
  // See StepGradients::add(). Error(kInvalid), with advice, when a normalisation layer rejects a
  // batch of one sample.
  void add(const data::Batch& batch, const ScaleLoss& scale, PhaseTimes& times) override;
  double step_loss() const override { return gradients_.step_loss(); }
  void begin_at(std::int64_t step) override { gradients_.begin_at(step); }
  Reducer* reducer() override { return &gradients_; }

 private:
  at::Tensor loss_of(const data::Batch& batch) const;

  const LossFunction loss_;
  const CountFunction count_;  // null: the loss is a mean over the samples
  Reducer& gradients_;
};

// A program's decision at the end of an epoch: whether the run continues.
enum class Next : std::uint8_t { kContinue, kStop };

struct LoopOptions {
  std::int64_t epochs = 1;
  std::int64_t max_steps = 0;  // the total number of steps after which the loop ends; 0: no limit
};

struct StepReport {
  const TrainingState& state;  // the state after the step
  double loss;           // mean over the samples, or over the elements that count, of all ranks
  std::int64_t samples;  // samples of this rank
};

struct LoopHooks {
  // Returns the tensor from which backward passes start instead of the loss: GradScaler::scale().
  ScaleLoss scale_loss;
  // Called instead of the optimizer's step(), with the gradients of the whole step: for clipping
  // before the step, for GradScaler::step(), and for a schedule or an average of the weights after
  // it.
  std::function<void()> take_step;
  std::function<void(const StepReport& report)> after_step;
  // Called after after_step; true ends the loop. All ranks must return the same (AgreedStop).
  std::function<bool()> stop_requested;
  // Called after each epoch, when state.epoch is already the number of the next epoch. All ranks
  // must return the same; kStop ends the loop with kDone.
  std::function<Next(const TrainingState& state)> after_epoch;
};

enum class LoopEnd {
  kDone,
  kStopped,  // stop_requested() returned true; a run can continue from `state`
};

// Trains from `state`, which may be in the middle of an epoch, and keeps `state` up to date. Adds
// the time of each phase to `times`. All ranks take the same number of steps. If a stop is
// requested after the very last step, the result is kDone. Error(kInvalid) when a run would
// continue with another number of logical shards.
LoopEnd run_loop(const LoopOptions& options, TrainingState& state, data::DataLoader& loader,
                 StepGradients& gradients, optim::Optimizer& optimizer, PhaseTimes& times,
                 const LoopHooks& hooks);

}  // namespace paceline::train
