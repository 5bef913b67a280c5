#pragma once

// The gradients of a training step, and the losses from which they are computed.
//
// StepGradients computes the gradients. BackwardPasses is the usual implementation, with a loss and
// its backward pass; PipelineGradients (pipeline_gradients.h) passes a batch through the stages of
// a model. A loss may be a mean over samples, or a sum over elements that count (CountedLoss), such
// as tokens that are not padding. The sum is divided by the number of elements that count in the
// whole step, in all its batches on all ranks. With a separate mean for each batch, the weight of a
// token would depend on the number of other tokens in its batch.
//
//   const train::CountedLoss loss{
//       .sum = [&](const data::Batch& batch) {
//         return cross_entropy(model(batch.data), batch.target,  // reduction: sum
//                              options.ignore_index(-100).reduction(torch::kSum)); },
//       .count = train::CountedLoss::targets_except(-100)};
//   train::backward_passes(loss, model);
//   train::evaluate_text(group, loader, loss);
//
// A loop of your own sets the weights of each step's batches first, and continues as with means
// over samples:
//
//   train::weigh_by_count(std::span(&batch, 1), loss.count, group.get());
//   batch.weighted(loss.sum(batch)).backward();
//
// Thread safety: none.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/telemetry/phase_times.h"
#include "paceline/training/data/data_loader.h"
#include "paceline/training/parallel/distributed_data_parallel.h"

namespace paceline::train {

// Runs the forward pass of a batch and returns the loss.
using LossFunction = std::function<at::Tensor(const data::Batch& batch)>;
// Returns the number of elements of a batch that count. It is computed from the batch alone, before
// any forward pass, and is not negative.
using CountFunction = std::function<double(const data::Batch& batch)>;

struct CountedLoss {
  LossFunction sum;  // the sum over the elements that count
  CountFunction count;

  // Makes a counted loss from a loss that is the mean over all elements of a batch's target.
  static CountedLoss over_all_targets(LossFunction mean);
  // Counts the targets that are not `ignored`. With `class_weights` [classes] each target counts
  // with the weight of its class, as in LibTorch's cross_entropy. Label smoothing does not change
  // the count.
  static CountFunction targets_except(std::int64_t ignored = -100,
                                      const at::Tensor& class_weights = {});
};

// Collective. Sets the weights of this rank's batches in a step so that the sum of weight * loss,
// averaged over the ranks, equals the total loss of the step divided by its total count.
// `replicas`: the ranks with different batches; null: only this rank. `logical_shards`: the number
// of logical shards of a step; 0: no logical shards. A batch whose weight is 0 keeps the weight 0.
// If the total count is 0, all weights are 0. Error(kInvalid) for a count that is negative or not
// finite.
void weigh_by_count(std::span<data::Batch> step, const CountFunction& count, ProcessGroup* replicas,
                    std::int64_t logical_shards = 0);

// Returns the tensor from which a backward pass starts instead of the loss (GradScaler::scale()).
using ScaleLoss = std::function<at::Tensor(const at::Tensor& loss)>;

class StepGradients {
 public:
  virtual ~StepGradients() = default;

  // Whether weigh() must be called with all batches of a step before the first batch is added.
  virtual bool weighs_steps() const { return false; }
  // Collective. Sets the weights of a step's batches on this rank.
  virtual void weigh(std::span<data::Batch> step) { (void)step; }
  // Adds the gradients of a batch's loss, times the batch's weight, to the step's gradients; after
  // the last batch of a step these are the same on all replicas. Adds the time of each phase to
  // `times`. `scale`: empty, or a function that scales losses.
  virtual void add(const data::Batch& batch, const ScaleLoss& scale, PhaseTimes& times) = 0;
  // The loss of the step whose last batch was added: the mean over the samples, or over the
  // elements that count, of all ranks. It is not scaled, and is the same on every rank.
  virtual double step_loss() const = 0;
  // Call it in a resumed run that has already taken `step` steps.
  virtual void begin_at(std::int64_t step) = 0;

 public:  // internal
  // The reducer whose communication hook may keep tensors between steps, for checkpoints; null: no
  // reducer.
  virtual Reducer* reducer() { return nullptr; }
};

namespace detail {

std::shared_ptr<StepGradients> backward_passes(LossFunction loss, Reducer& gradients);
std::shared_ptr<StepGradients> backward_passes(CountedLoss loss, Reducer& gradients);

}  // namespace detail

// Returns a value for Training::gradients (training_run.h) that runs a forward and a backward pass
// for each batch. `model` must outlive the value. `loss`: a mean over the samples or a CountedLoss.
template <class Module>
std::shared_ptr<StepGradients> backward_passes(LossFunction loss,
                                               DistributedDataParallel<Module>& model) {
  return detail::backward_passes(std::move(loss), model.reducer());
}
template <class Module>
std::shared_ptr<StepGradients> backward_passes(CountedLoss loss,
                                               DistributedDataParallel<Module>& model) {
  return detail::backward_passes(std::move(loss), model.reducer());
}

inline namespace internal {

template <class Loss>
concept TakesBatch =
    std::is_convertible_v<Loss, LossFunction> || std::is_convertible_v<Loss, CountedLoss>;

// Common mistakes: each is a compile-time error that shows what to write instead.
template <class Loss, class Model>
  requires(!TakesBatch<Loss> || !requires(Model& model) { model.reducer(); })
std::shared_ptr<StepGradients> backward_passes(const Loss& /*loss*/, Model& /*model*/) {
  if constexpr (!TakesBatch<Loss>) {
    static_assert(sizeof(Loss) == 0,
                  "the loss is a function of a batch: write [&](const data::Batch& batch) { return "
                  "torch::nll_loss(model(batch.data), batch.target); }");
  } else {
    static_assert(sizeof(Loss) == 0,
                  "the model is not wrapped: give it the DistributedDataParallel, or the result of "
                  "fully_shard()");
  }
  return nullptr;
}

template <class Loss>
std::shared_ptr<StepGradients> backward_passes(const Loss& /*loss*/) {
  static_assert(sizeof(Loss) == 0,
                "the model is missing: write backward_passes(loss, model), with the "
                "DistributedDataParallel or the result of fully_shard()");
  return nullptr;
}

}  // namespace internal

}  // namespace paceline::train
