#pragma once

// The gradients of a step by backward passes over its batches.
//
// Thread safety: none.

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

#include "paceline/training/parallel/reducer/reducer.h"
#include "paceline/training/train/step_gradients.h"

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

}  // namespace paceline::train
