#pragma once

// EfficientNet's block (MBConv; Sandler et al., 2018, with the squeeze-and-excitation of Hu et al.,
// 2018): channels are expanded, filtered one by one, weighted by what the whole image looks like,
// and joined again. Where nothing changes its shape, the input is added; in training a sample's
// block is left out at random (stochastic depth; Huang et al., 2016). torchvision's parameter
// names.

#include <cstdint>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include "paceline/training/models/conv_norm.h"
#include "paceline/training/models/layers.h"

namespace paceline::models {

struct MobileBlockOptions {
  std::int64_t in_channels = 0;
  std::int64_t out_channels = 0;
  std::int64_t expanded_channels = 0;  // as in_channels: there is no expansion
  std::int64_t kernel = 3;
  std::int64_t stride = 1;
  double drop = 0;  // the probability with which the block is left out
  double norm_epsilon = 1e-5;
  double norm_momentum = 0.1;
};

class MobileBlockImpl : public torch::nn::Cloneable<MobileBlockImpl> {
 public:
  MobileBlockImpl(const MobileBlockOptions& options, const Layers& layers);
  void reset() override;
  // [N, in_channels, height, width] -> [N, out_channels, ceil(height / stride), ...]
  at::Tensor forward(const at::Tensor& images);

 private:
  ConvNormOptions convolution(std::int64_t in_channels, std::int64_t out_channels) const;

  MobileBlockOptions options_;
  Layers layers_;
  torch::nn::ModuleList block_;  // the convolutions and, before the last one, the weighting
};
TORCH_MODULE(MobileBlock);

}  // namespace paceline::models
