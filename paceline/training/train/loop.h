#pragma once

// The training loop, in one page: epochs of steps, each one the gradients of every batch of the
// step (one, unless a global batch comes in parts) and the optimizer's step, timed by phase.
// Everything else (logging, evaluation, checkpoints) hangs on its hooks.
//
// How the gradients come to be is StepGradients': BackwardPasses is the usual way, a loss and its
// backward pass; PipelineGradients (pipeline_gradients.h) sends a batch through the stages of a
// model. Losses may be means over samples, or sums over what counts (CountedLoss), such as the
// tokens that are not padding, divided by how many count in the whole step, in all its batches on
// all ranks. A mean of each batch would weigh a token by how many others its batch happens to have.
//
//   const train::CountedLoss loss{
//       .sum = [&](const data::Batch& batch) {
//         return cross_entropy(model(batch.data), batch.target,  // reduction: sum
//                              options.ignore_index(-100).reduction(torch::kSum)); },
//       .count = train::targets_except(-100)};
//   train::backward_passes(loss, model.reducer());
//   train::evaluate_text(*group, loader, loss);
//
// A loop of one's own weighs the batches of each step, and goes on as with means over samples:
//
//   train::weigh_by_count(std::span(&*batch, 1), loss.count, group.get());
//   (loss.sum(*batch) * batch->weight).backward();
//
// Thread safety: none.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/telemetry/phase_times.h"
#include "paceline/training/data/data_loader.h"
#include "paceline/training/optim/optimizer.h"
#include "paceline/training/parallel/reducer/reducer.h"
#include "paceline/training/train/training_state.h"

namespace paceline::train {

// The loss of a batch: the forward pass.
using LossFunction = std::function<at::Tensor(const data::Batch& batch)>;
// How much of a batch counts: of the batch alone, before any forward pass. Not negative.
using CountFunction = std::function<double(const data::Batch& batch)>;

struct CountedLoss {
  LossFunction sum;  // over what counts
  CountFunction count;
};

// Counts the targets that are not `ignored`; with `class_weights` [classes] each counts as much as
// its class weighs, as in LibTorch's cross_entropy. Label smoothing changes no count.
CountFunction targets_except(std::int64_t ignored = -100, const at::Tensor& class_weights = {});

// Makes a counted loss of one that is the mean over all elements of a batch's target.
CountedLoss over_all_targets(LossFunction mean);

// Collective. Sets the weights of a step's batches on this rank, so that the average over the ranks
// of the sums of weight times loss is the loss's sum over the step divided by its count.
// `replicas`: the ranks that differ in their batches; null: this one alone. `logical_shards`: of a
// step; 0: none. A batch of weight 0 keeps it. Where nothing counts in the whole step, all weights
// are 0. Error(kInvalid) for a count that is negative or not finite.
void weigh_by_count(std::span<data::Batch> step, const CountFunction& count, ProcessGroup* replicas,
                    std::int64_t logical_shards = 0);

// Samples [begin, begin + count) of a batch, which keep its weight.
data::Batch part_of(const data::Batch& batch, std::int64_t begin, std::int64_t count);

// What backward passes begin with instead of a loss (GradScaler::scale()).
using ScaleLoss = std::function<at::Tensor(const at::Tensor& loss)>;

class StepGradients {
 public:
  virtual ~StepGradients() = default;

  // Whether weigh() must see all batches of a step before the first one is added.
  virtual bool weighs_steps() const { return false; }
  // Collective. Sets the weights of a step's batches on this rank.
  virtual void weigh(std::span<data::Batch> step) { (void)step; }
  // Adds the gradients of a batch's loss times the batch's weight to the step's; after the last
  // batch of a step they are the same on all replicas. Adds to `times` what each phase took.
  // `scale`: empty, or what scales losses.
  virtual void add(const data::Batch& batch, const ScaleLoss& scale, PhaseTimes& times) = 0;
  // The loss of the step whose last batch was added: the mean over the samples, or over what
  // counts, of all ranks; not scaled; the same on every rank.
  virtual double step_loss() const = 0;
  // So many steps were taken before, by a run that goes on.
  virtual void begin_at(std::int64_t step) = 0;
  // Whose communication hook may keep something between steps, for checkpoints; null: there is
  // none.
  virtual Reducer* reducer() { return nullptr; }
};

// A forward and a backward pass for each batch; `gradients` averages what they leave in `.grad`.
// Ownership: it refers to `gradients`, which must outlive it.
class BackwardPasses : public StepGradients {
 public:
  // A loss that is a mean over the samples.
  BackwardPasses(LossFunction loss, Reducer& gradients);
  BackwardPasses(CountedLoss loss, Reducer& gradients);

  bool weighs_steps() const override { return count_ != nullptr; }
  void weigh(std::span<data::Batch> step) override;
  // Error(kInvalid) with what to do when a normalisation refuses a batch of one sample.
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

// For Training::gradients (training_run.h).
std::shared_ptr<StepGradients> backward_passes(LossFunction loss, Reducer& gradients);
std::shared_ptr<StepGradients> backward_passes(CountedLoss loss, Reducer& gradients);

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
