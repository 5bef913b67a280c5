#pragma once

// How a step's gradients come to be: what the training loop does with each batch before it takes
// the optimizer's step. BackwardPasses is the usual way, a loss and its backward pass;
// PipelineGradients (pipeline_gradients.h) sends the batch through the stages of a model.
//
// Thread safety: none.

#include <functional>
#include <memory>

#include "paceline/data/data_loader.h"
#include "paceline/parallel/gradient_sync.h"
#include "paceline/parallel/reducer.h"
#include "paceline/telemetry/phase_times.h"

namespace paceline::train {

// The loss of a batch: the forward pass.
using LossFunction = std::function<at::Tensor(const data::Batch& batch)>;
// What backward passes begin with instead of a loss (GradScaler::scale()).
using ScaleLoss = std::function<at::Tensor(const at::Tensor& loss)>;

class StepGradients {
 public:
  virtual ~StepGradients() = default;

  // Adds the gradients of a batch's loss, a mean times the batch's weight, to the step's; after the
  // last batch of a step they are the same on all replicas. Adds to `times` what each phase took.
  // The mean loss of the batch, not scaled, on every rank. `scale`: empty, or what scales losses.
  virtual double add(const data::Batch& batch, const ScaleLoss& scale, PhaseTimes& times) = 0;
  // So many steps were taken before, by a run that goes on.
  virtual void begin_at(std::int64_t step) = 0;
  // Whose communication hook may keep something between steps, for checkpoints; null: there is
  // none.
  virtual Reducer* reducer() { return nullptr; }
};

// A forward and a backward pass for each batch; `gradients` averages what they leave in `.grad`.
class BackwardPasses : public StepGradients {
 public:
  // Ownership: it refers to `gradients`, which must outlive it.
  BackwardPasses(LossFunction loss, GradientSync& gradients);
  BackwardPasses(LossFunction loss, Reducer& gradients);

  double add(const data::Batch& batch, const ScaleLoss& scale, PhaseTimes& times) override;
  void begin_at(std::int64_t step) override { gradients_.begin_at(step); }
  Reducer* reducer() override { return reducer_; }

 private:
  const LossFunction loss_;
  GradientSync& gradients_;
  Reducer* const reducer_;  // null: `gradients_` is none
};

// For Training::gradients (training_run.h).
std::shared_ptr<StepGradients> backward_passes(LossFunction loss, Reducer& gradients);

}  // namespace paceline::train
