#pragma once

// How a step's gradients come to be: what the training loop does with each batch before it takes
// the optimizer's step. BackwardPasses is the usual way, a loss and its backward pass;
// PipelineGradients (pipeline_gradients.h) sends the batch through the stages of a model.
//
// Thread safety: none.

#include <functional>
#include <memory>
#include <span>

#include "paceline/engine/telemetry/phase_times.h"
#include "paceline/training/data/data_loader.h"
#include "paceline/training/parallel/reducer.h"
#include "paceline/training/train/counted_loss.h"

namespace paceline::train {

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

}  // namespace paceline::train
