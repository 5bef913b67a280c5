#pragma once

// Layers on spread positions (sequence parallelism): every rank has all of the weights and works on
// its part of the positions, dim 1 of [N, T, width]. So each rank computes a part of the weights'
// gradients; the backward pass adds them up, and every rank gets the whole gradient.
//
// Thread safety: that of a module; one thread trains.

#include <iosfwd>

#include <torch/nn/cloneable.h>
#include <torch/nn/options/linear.h>
#include <torch/nn/options/normalization.h>
#include <torch/nn/pimpl.h>

#include "paceline/training/autograd/regions.h"

namespace paceline {

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

}  // namespace paceline
