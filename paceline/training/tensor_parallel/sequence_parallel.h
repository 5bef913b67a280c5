#pragma once

// The layers and the dropout of sequence parallelism, which tensor_parallel_layers() puts into a
// transformer.
//
// Thread safety: none; one thread trains. The layers keep the group alive.

#include <iosfwd>

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/options/linear.h>
#include <torch/nn/options/normalization.h>
#include <torch/nn/pimpl.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/autograd/differentiable_collectives.h"

namespace paceline {

// The two layers below are for positions that are divided among ranks (sequence parallelism): every
// rank has all of the weights and computes its part of the positions, dim 1 of [N, T, width]. So
// each rank computes a part of the weights' gradients; the backward pass adds these up, and every
// rank gets the whole gradient.

// torch::nn::LayerNorm, with an all-reduce of 2 x width numbers in each backward pass.
class SequenceParallelLayerNormImpl : public torch::nn::Cloneable<SequenceParallelLayerNormImpl> {
 public:
  SequenceParallelLayerNormImpl(const torch::nn::LayerNormOptions& options, GroupPtr group);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight, bias;

 private:
  torch::nn::LayerNormOptions options_;
  GroupPtr group_;
};
TORCH_MODULE(SequenceParallelLayerNorm);

// torch::nn::Linear, with the same initial values for the same random numbers.
class SequenceParallelLinearImpl : public torch::nn::Cloneable<SequenceParallelLinearImpl> {
 public:
  SequenceParallelLinearImpl(const torch::nn::LinearOptions& options, GroupPtr group);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight, bias;

 private:
  torch::nn::LinearOptions options_;
  GroupPtr group_;
};
TORCH_MODULE(SequenceParallelLinear);

// Dropout for activations that are divided among ranks, with a different mask on each rank.
// (paceline::dropout, training/tensor/random.h, uses the same mask on all ranks with the same
// seed.) In a group of one rank it is paceline::dropout. Error(kInvalid) unless 0 <= p < 1.
//
// Each call seeds a generator with a number from rank_generator(), the same on every rank of the
// group, and with the rank's number. So the ranks' generators keep the same state, and saving and
// restoring it (checkpoints, logical shards, activation checkpoints) covers both kinds of dropout.
//
// Thread safety: same as rank_generator().
at::Tensor sharded_dropout(const ProcessGroup& group, const at::Tensor& input, double p,
                           bool is_training);

}  // namespace paceline
