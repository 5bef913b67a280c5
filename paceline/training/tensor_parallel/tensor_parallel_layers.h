#pragma once

// What makes a transformer tensor-parallel: the layers (models::Layers) that divide heads, the
// MLP's features and the vocabulary among the ranks of a group.
//
//   DeviceMesh mesh(world, {{"dp", 2}, {"tp", 2}});
//   models::Gpt model(options, tensor_parallel_layers(mesh.group("tp")));
//   DistributedDataParallel replicas(model.ptr(), mesh.group("dp"));
//
// Built with LibTorch's generator seeded alike on every rank, the model has the weights of the
// dense model, each rank its part, bit for bit; dense_weights.h reads and writes whole ones.
// Logits, loss and gradients are the dense model's but for rounding, and the gradients of what
// every rank has whole (norms, positions, the biases of last layers) are the same on every rank:
// an optimizer needs to know nothing. A norm over all gradients does: gradients of parts are parts
// of it.
//
// Each layer of the model costs two all-reduces of [N, T, width] forward and two backward. With
// `sequence_parallel` each becomes an all-gather and a reduce-scatter, the same bytes, and what
// lies between (norms, dropout, residuals) takes a part of time and memory; the positions T must
// divide among the ranks, so generation, one position at a time, is not possible then.
//
// All ranks of the group are given the same tokens; models::generate() checks that they have the
// same prompt and options. For dropout, call seed_rank() with the same number on all of them, and
// with another number for other samples: activations that every rank has drop the same elements
// everywhere, divided ones (part_dropout.h) do not.
//
// Error(kInvalid) from the model's constructor names rank, layer and what does not divide.
//
// Thread safety: that of a module; one thread trains. The layers keep the group alive.

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

// Layers on spread positions (sequence parallelism): every rank has all of the weights and works on
// its part of the positions, dim 1 of [N, T, width]. So each rank computes a part of the weights'
// gradients; the backward pass adds them up, and every rank gets the whole gradient.
//
// Thread safety: that of a module; one thread trains.

// torch::nn::LayerNorm; one all-reduce of 2 x width numbers in each backward pass.
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

// torch::nn::Linear, from the same random numbers.
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

// Dropout of what is divided among ranks: every rank drops elements of its own, while
// paceline::dropout (training/tensor/random.h) drops the same ones on every rank whose generator
// was seeded alike.
//
// How. A number drawn from rank_generator(), the same on every rank of the group, and this rank's
// number seed a generator for this call. So the ranks' generators stay in step, and whatever saves
// and restores them (checkpoints, logical shards, activation checkpoints) covers both kinds.
//
// Thread safety: that of rank_generator().

// As paceline::dropout, which it is in a group of one. Error(kInvalid) unless 0 <= p < 1.
at::Tensor part_dropout(const ProcessGroup& group, const at::Tensor& input, double p,
                        bool is_training);

}  // namespace paceline
