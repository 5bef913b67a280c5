#pragma once

// Makes a transformer tensor-parallel by its layers (models::Layers), which divide heads, the MLP's
// features and the vocabulary among the ranks of a group.
//
//   DeviceMesh mesh(world, {{"dp", 2}, {"tp", 2}});
//   models::Gpt model(options, tensor_parallel_layers(mesh.group("tp")));
//   DistributedDataParallel replicas(model.ptr(), mesh.group("dp"));
//
// If LibTorch's generator is seeded alike on every rank, each rank gets its part of the weights of
// the dense model, bit for bit; dense_weights.h reads and writes whole weights. Logits, loss and
// gradients are the dense model's but for rounding, and the gradients of parameters that every rank
// has whole (norms, positions, the biases of last layers) are the same on every rank, so any
// optimizer works. A norm over all gradients must be summed over the ranks, because each has only a
// part of the gradients.
//
// Each layer of the model costs two all-reduces of [N, T, width] forward and two backward. With
// `sequence_parallel` each becomes an all-gather and a reduce-scatter of the same bytes, and norms,
// dropout and residuals between them take only a part of the time and memory; the positions T must
// divide among the ranks, so generation, one position at a time, is not possible then.
//
// All ranks of the group must get the same tokens; models::generate() checks that they have the
// same prompt and options. For dropout, call seed_rank() with the same number on all of them, and
// with another number for other samples: replicated activations drop the same elements on every
// rank, divided ones (part_dropout()) do not.
//
// Error(kInvalid) from the model's constructor names rank, layer and what does not divide.
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
#include "paceline/training/models/layers.h"

namespace paceline {

struct TensorParallelOptions {
  // Norms, dropout and residuals work on a part of the positions. For transformers only.
  bool sequence_parallel = false;
  // Logits of the whole vocabulary on every rank. False: each rank's part, for
  // vocab_parallel_cross_entropy(), which saves an all-gather and their memory.
  bool gather_logits = true;
};

models::Layers tensor_parallel_layers(const GroupPtr& group,
                                      const TensorParallelOptions& options = {});

// The two layers below are for spread positions (sequence parallelism): every rank has all of the
// weights and computes its part of the positions, dim 1 of [N, T, width]. So each rank computes a
// part of the weights' gradients; the backward pass adds them up, and every rank gets the whole
// gradient.

// torch::nn::LayerNorm, with an all-reduce of 2 x width numbers in each backward pass.
class SpreadLayerNormImpl : public torch::nn::Cloneable<SpreadLayerNormImpl> {
 public:
  SpreadLayerNormImpl(const torch::nn::LayerNormOptions& options, GroupPtr group);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight, bias;

 private:
  torch::nn::LayerNormOptions options_;
  GroupPtr group_;
};
TORCH_MODULE(SpreadLayerNorm);

// torch::nn::Linear, with the initial values that it makes from the same random numbers.
class SpreadLinearImpl : public torch::nn::Cloneable<SpreadLinearImpl> {
 public:
  SpreadLinearImpl(const torch::nn::LinearOptions& options, GroupPtr group);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight, bias;

 private:
  torch::nn::LinearOptions options_;
  GroupPtr group_;
};
TORCH_MODULE(SpreadLinear);

// Dropout for activations that are divided among ranks: a different mask on each rank.
// (paceline::dropout, training/tensor/random.h, has the same mask on every rank that was seeded
// alike.) In a group of one it is paceline::dropout. Error(kInvalid) unless 0 <= p < 1.
//
// A number from rank_generator(), the same on every rank of the group, and the rank's number seed a
// generator for this call. So the ranks' generators keep the same state, and saving and restoring
// it (checkpoints, logical shards, activation checkpoints) covers both kinds of dropout.
//
// Thread safety: as rank_generator().
at::Tensor part_dropout(const ProcessGroup& group, const at::Tensor& input, double p,
                        bool is_training);

}  // namespace paceline
