#pragma once

// The layers that a model is built from. A model's constructor takes a `Layers`, as torchvision's
// models take a norm_layer, so that a program can replace a kind of layer everywhere: BatchNorm by
// SyncBatchNorm (parallel/sync_batch_norm.h) or by GroupNorm, a linear layer by one that is divided
// among ranks. The models themselves stay blind to ranks.
//
//   models::ResNet model({.depth = 18}, {.norm = paceline::sync_batch_norm(group)});
//
// Each call makes a new layer, whose forward() takes one tensor and returns one. Layers that a
// clone() of the model must have, too, are torch::nn::Cloneable.
//
// Thread safety: that of the functions it holds; the ones here have no state.

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/options/linear.h>

namespace paceline::models {

// torch::nn::Linear.
torch::nn::AnyModule plain_linear(const torch::nn::LinearOptions& options);
// torch::nn::BatchNorm2d of so many channels, with its default options.
torch::nn::AnyModule batch_norm_2d(std::int64_t channels);
// torch::dropout.
at::Tensor plain_dropout(const at::Tensor& input, double p, bool is_training);

struct Layers {
  std::function<torch::nn::AnyModule(const torch::nn::LinearOptions& options)> linear =
      plain_linear;
  // Of feature maps [N, channels, height, width].
  std::function<torch::nn::AnyModule(std::int64_t channels)> norm = batch_norm_2d;
  // paceline::dropout (tensor/random.h) draws numbers of each rank and logical shard.
  std::function<at::Tensor(const at::Tensor& input, double p, bool is_training)> dropout =
      plain_dropout;
};

}  // namespace paceline::models
