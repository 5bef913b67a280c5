#pragma once

// Batch normalisation over the samples of all ranks, with the semantics of PyTorch's SyncBatchNorm,
// on the CPU or on CUDA devices. In training, each forward pass gathers every rank's mean, variance
// and number of elements, and each backward pass adds up two sums for each feature. In each layer a
// rank sends (2 * num_features + 1) numbers of 8 bytes in the forward pass and (2 * num_features)
// in the backward pass, whatever the size of the batch. The statistics are merged in rank order, in
// float64, so all ranks get the same bits in every run.
//
//   paceline::SyncBatchNorm norm(torch::nn::BatchNormOptions(64), group);
//   models::ResNet model({.depth = 18}, {.norm = paceline::sync_batch_norm(group)});
//
// Parameters, buffers and options are those of torch::nn::BatchNorm1d to 3d, so both can load the
// same saved weights. In evaluation mode nothing is communicated. A rank's gradients of weight and
// bias are those of its own samples; DistributedDataParallel averages them.
//
// Ranks may have batches of different sizes, even empty ones ([0, C, ...]), but every rank must run
// each layer's forward and backward pass the same number of times and in the same order: otherwise
// every rank gets an Error that reports the difference. If ranks run different parts of a model, or
// use activation checkpoints, give the layers a group of their own (group->split(0,
// group->rank())), because DistributedDataParallel starts all-reduces between the collectives of
// the layers. Second derivatives are not supported. On CUDA the host does not wait, so a batch
// of one value per feature, which has no variance, is not reported: the running variance is NaN.
//
// Thread safety: none; one thread trains.

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

class SyncBatchNormImpl
    : public torch::nn::NormImplBase<0, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  // Error(kInvalid) if `group` is null.
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options,
                    std::shared_ptr<ProcessGroup> group);

  // `input` is [N, num_features, ...] with 2 to 5 dimensions, of any floating-point type; the
  // result has the same shape and type. Collective in training. On the CPU, Error(kInvalid) on
  // every rank when the ranks together have only one value for each feature. If all batches are
  // empty, the running statistics do not change.
  at::Tensor forward(const at::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const at::Tensor& input) override;

 private:
  at::Tensor normalize_over_ranks(const at::Tensor& input);
  void update_running_statistics(const at::Tensor& mean, const at::Tensor& variance, double count);
  void update_running_on_device(const at::Tensor& mean, const at::Tensor& variance,
                                const at::Tensor& count);

  std::shared_ptr<ProcessGroup> group_;  // shared with the user and with clones of this module
};
TORCH_MODULE(SyncBatchNorm);

// Returns a function that makes SyncBatchNorm layers for a model (models::Layers::norm), each with
// `options` and its own number of features.
std::function<torch::nn::AnyModule(std::int64_t num_features)> sync_batch_norm(
    std::shared_ptr<ProcessGroup> group, const torch::nn::BatchNormOptions& options = {1});

}  // namespace paceline
