#pragma once

// Losses that are not means over samples: sums over what counts, such as the tokens that are not
// padding, divided by how many count in the whole step, in all its batches on all ranks. A mean of
// each batch would weigh a token by how many others its batch happens to have.
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
// Thread safety: pure functions, but for weigh_by_count(), which communicates.

#include <cstdint>
#include <functional>
#include <span>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/data/data_loader.h"

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

}  // namespace paceline::train
